"""Look at hosts before they are used, and say what is wrong with them."""
