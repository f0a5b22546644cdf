"""Block-sparse attention for long sequences: routing and kernels as PyTorch operators.

    plan = tessera.route(q, k, sparsity=0.75)
    print(plan)                               # 152/590 blocks, density 0.258
    out = tessera.attend(q, k, v, plan)

The operators behind them are ``torch.ops.tessera.route``, ``.sparse_attention`` and
``.dense_attention``; they trace under ``torch.compile`` and ``torch.export``.
"""

from tessera._ops import attend, route
from tessera._plan import PlanStats, RoutePlan

__all__ = ["PlanStats", "RoutePlan", "attend", "route"]
__version__ = "0.1.0"
