"""What is collected, by whom, until when and under which parameters."""
