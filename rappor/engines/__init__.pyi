from rappor.engines.json_lines import Aggregation as Aggregation
from rappor.engines.json_lines import Refusal as Refusal
from rappor.engines.json_lines import aggregate_jsonl as aggregate_jsonl
from rappor.engines.parquet import aggregate_parquet as aggregate_parquet
from rappor.engines.parquet import count_batch as count_batch
from rappor.engines.parquet import write_parquet as write_parquet
