"""torch.multiprocessing on Baton. To a type checker it is torch.multiprocessing: what is made here has the same methods."""

from multiprocessing import *

from torch.multiprocessing import get_all_sharing_strategies as get_all_sharing_strategies
from torch.multiprocessing import get_sharing_strategy as get_sharing_strategy
from torch.multiprocessing import set_sharing_strategy as set_sharing_strategy
from torch.multiprocessing.spawn import ENV_VAR_PARALLEL_START as ENV_VAR_PARALLEL_START
from torch.multiprocessing.spawn import ProcessContext as ProcessContext
from torch.multiprocessing.spawn import ProcessExitedException as ProcessExitedException
from torch.multiprocessing.spawn import ProcessRaisedException as ProcessRaisedException
from torch.multiprocessing.spawn import SpawnContext as SpawnContext
from torch.multiprocessing.spawn import spawn as spawn
from torch.multiprocessing.spawn import start_processes as start_processes

from . import pool as pool
from . import queue as queue
from . import reductions as reductions
