"""What the device keeps on its disk: its database, its secret and what guards them."""
