"""What is read: ranges of counts, estimates in a process of their own, exports."""
