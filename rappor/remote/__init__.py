"""An analyst's way to a collector: the one folder of the method that speaks over a network."""
