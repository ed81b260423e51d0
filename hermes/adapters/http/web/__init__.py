"""The web page: `assets` serves its files, which are in the folder `page`."""
