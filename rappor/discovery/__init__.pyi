from rappor.discovery.discover import discover as discover
from rappor.discovery.discoveries import Discoveries as Discoveries
from rappor.discovery.discoveries import Prefixes as Prefixes
from rappor.discovery.discoveries import Unfinished as Unfinished
