from ezpz.dist import *

def __getattr__(name: str) -> object: ...  # as in `ezpz`
