"""The linear model of counts: de-biasing, design matrix, screening, selection, fit, tests."""
