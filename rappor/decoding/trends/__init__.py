"""How shares run over days, weeks or months."""
