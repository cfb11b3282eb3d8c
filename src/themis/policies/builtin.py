"""The policies that come with Themis, by name. A new one is a line here; nothing has to be installed again.

Policies of other packages are entry points of the group ``themis.policies``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "themis": "themis.policies.themis:Themis",
        "drf": "themis.policies.drf:Drf",
        "fifo": "themis.policies.fifo:Fifo",
        "tiresias": "themis.policies.tiresias:Tiresias",
        "gandiva": "themis.policies.gandiva:Gandiva",
        "isolated": "themis.policies.isolated:Isolated",
        "round_robin": "themis.policies.round_robin:RoundRobin",
        "shockwave": "themis.policies.shockwave:Shockwave",
        "ossp": "themis.policies.ossp:Ossp",
        "optimus": "themis.policies.optimus:Optimus",
        "slaq": "themis.policies.slaq:Slaq",
        "srtf": "themis.policies.srtf:Srtf",
        "elastic_finish": "themis.policies.elastic_finish:ElasticFinish",
        "pollux": "themis.policies.pollux:Pollux",
        "sia": "themis.policies.sia:Sia",
        "srsf": "themis.policies.srsf:Srsf",
        "fair_finish": "themis.policies.fair_finish:FairFinish",
        "tiresias_2q": "themis.policies.tiresias_2q:Tiresias2Q",
        "tiresias_gittins": "themis.policies.tiresias_gittins:TiresiasGittins",
        "greedy_finish_time": "themis.policies.greedy_finish_time:GreedyFinishTime",
        "random": "themis.policies.random:Random",
        "max_min_fairness": "themis.policies.max_min_fairness:MaxMinFairness",
        "max_min_water_filling": "themis.policies.max_min_water_filling:MaxMinWaterFilling",
        "finish_time_fairness": "themis.policies.finish_time_fairness:FinishTimeFairness",
        "makespan": "themis.policies.makespan:Makespan",
        "fifo_hetero": "themis.policies.fifo_hetero:FifoHetero",
        "sjf_hetero": "themis.policies.sjf_hetero:SjfHetero",
        "max_throughput": "themis.policies.max_throughput:MaxThroughput",
        "min_cost": "themis.policies.min_cost:MinCost",
        "min_cost_slo": "themis.policies.min_cost_slo:MinCostSlo",
        "allox": "themis.policies.allox:Allox",
        "gandiva_fair": "themis.policies.gandiva_fair:GandivaFair",
        "gandiva_packing": "themis.policies.gandiva_packing:GandivaPacking",
        "hierarchical": "themis.policies.hierarchical:Hierarchical",
        "proportional": "themis.policies.proportional:Proportional",
    }
)
"""Module and class of each policy; a policy's module is loaded on first use."""
