from ezpz.models.mlp import SequentialLinearNet as SequentialLinearNet
