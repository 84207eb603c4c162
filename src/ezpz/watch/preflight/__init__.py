"""Look at the hosts before ranks begin: refuse what must fail, note what is worth a word (``launch --check``)."""
