from rappor.discovery.discoveries import Discoveries as Discoveries
from rappor.discovery.discoveries import Prefixes as Prefixes
from rappor.discovery.discoveries import Unfinished as Unfinished
from rappor.discovery.part_by_part import discover as discover
