from ezpz.checkpoint.checkpoints import Checkpoints as Checkpoints
from ezpz.checkpoint.exporting import Exported as Exported, export as export
from ezpz.checkpoint.finding import Found as Found, describe as describe, find_latest as find_latest, newest as newest
from ezpz.checkpoint.hugging_face_models import export_hugging_face as export_hugging_face
from ezpz.checkpoint.hugging_face_models import import_hugging_face as import_hugging_face
from ezpz.checkpoint.resuming import Choice as Choice, choose as choose
