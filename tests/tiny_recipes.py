"""Settings with which a recipe takes seconds on the embedded data."""

from pathlib import Path

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
TINY = (
    "--num_sequences", "4", "--sequence_length", "8", "--latent_dim", "4", "--inner_steps", "4", "--synthetic_batch_size", "2",
    "--max_steps", "2", "--num_students", "2", "--use_cpu", "true", "--disable_tqdm", "true", "--report_to", "none",
)  # fmt: skip
COMPARED = (*TINY, "--long_steps", "3", "--seeds", "0", "1", "--window", "0")
"""Of a table whose rows are distillations of two seeds each."""
GPT2 = '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1}'
GRU4REC = '{"model_type": "gru4rec", "hidden_size": 8}'
SASREC = '{"model_type": "sasrec", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}'


def places(folder: Path) -> list[str]:
    """Where such a table's cells and card go."""
    return ["--output_dir", str(folder / "runs"), "--card_dir", str(folder / "card")]
