"""The collector: receives uploads, keeps counts."""
