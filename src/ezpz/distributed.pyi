from ezpz.dist import *
