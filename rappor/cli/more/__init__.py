"""Commands under the heading "More": comparisons of trust models, SQL, files of google/rappor."""
