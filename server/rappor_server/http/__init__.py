"""What speaks HTTP: the application, its two routers, its description."""
