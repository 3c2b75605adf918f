from rappor.discovery.discoveries import Discoveries as Discoveries
from rappor.discovery.discoveries import NamedOther as NamedOther
from rappor.discovery.discoveries import Prefixes as Prefixes
from rappor.discovery.discoveries import Share as Share
from rappor.discovery.discoveries import TextInOther as TextInOther
from rappor.discovery.discoveries import Unfinished as Unfinished
from rappor.discovery.other import name_other as name_other
from rappor.discovery.part_by_part import discover as discover
