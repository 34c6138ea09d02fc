"""What a decoder needs to know about its checkpoint, and the cost of running it."""

from dataclasses import dataclass

from wholecurve.errors import UserError


class InconsistentConfig(UserError):
    """Fields that are right one by one do not fit each other. Readers put the file's name in front."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama-family decoder. Sizes are counts of elements, not bytes."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_position: int
    tie_word_embeddings: bool
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise InconsistentConfig(
                f"{self.num_heads} attention heads are no multiple of {self.num_kv_heads} key-value heads"
            )
        if self.head_dim % 2:
            raise InconsistentConfig(f"head_dim {self.head_dim} is odd, rotary embedding needs an even one")

    @property
    def num_layer_matrix_parameters(self) -> int:
        """Elements of the matrices of all decoder layers: what a token is multiplied with on its way."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of all decoder layers, norms included, without embedding and output head."""
        return self.num_layer_matrix_parameters + 2 * self.num_layers * self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters; a tied embedding counts once."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_layer_parameters + embeddings + self.hidden_size

    def weight_bytes_per_step(self, itemsize: int) -> int:
        """Bytes of weights that one step must read: every layer and the output head, each once."""
        return itemsize * (self.num_layer_parameters + self.vocab_size * self.hidden_size + self.hidden_size)

    def kv_bytes_per_token(self, itemsize: int) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * itemsize

    def decode_flops(self, sequences: int, context: float) -> float:
        """FLOPs of one decode step: matrices for `sequences` rows and attention over `context` keys each.

        2 per multiply-add of matrices and attention; norms, activations and rotations are not counted.
        """
        matrices = self.num_layer_matrix_parameters + self.vocab_size * self.hidden_size
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * context
        return 2.0 * sequences * (matrices + attention)

    def prefill_flops(self, tokens: int) -> float:
        """FLOPs of prefilling one prompt of `tokens` from an empty cache, counted as in `decode_flops`.

        Only unmasked pairs of query and key count; the output head runs for the last token alone.
        """
        pairs = tokens * (tokens + 1) / 2
        attention = 2 * self.num_layers * self.num_heads * self.head_dim * pairs
        return 2.0 * (tokens * self.num_layer_matrix_parameters + attention + self.vocab_size * self.hidden_size)


def config_from_hf(config: dict, where: str) -> ModelConfig:
    """Read a Hugging Face `config.json` of the Llama family.

    Raises UserError, naming file and field, for another family, for features that this decoder does not have (biases,
    other activations, scaled or partial rotary tables), and for fields that are missing or make no sense.
    """
    family = config.get("model_type")
    if family != "llama":
        raise UserError(f"{where}: model_type is {family!r}; supported: 'llama'")
    rope_theta = _rope_theta_from_hf(config, where)
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise UserError(f"{where}: hidden_act is {activation!r}; supported: 'silu'")
    for bias in ("attention_bias", "mlp_bias"):
        if config.get(bias):
            raise UserError(f"{where}: {bias} is true; supported: false")

    def whole(field: str, default: int | None = None) -> int:
        value = config.get(field)
        return positive(default if value is None else value, field, where)

    heads, hidden, eos = whole("num_attention_heads"), whole("hidden_size"), config.get("eos_token_id")
    try:
        return ModelConfig(
            vocab_size=whole("vocab_size"),
            hidden_size=hidden,
            intermediate_size=whole("intermediate_size"),
            num_layers=whole("num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=whole("num_key_value_heads", heads),
            head_dim=whole("head_dim", hidden // heads),
            rms_norm_eps=positive(config.get("rms_norm_eps"), "rms_norm_eps", where, float),
            rope_theta=rope_theta,
            max_position=whole("max_position_embeddings"),
            tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else (() if eos is None else (eos,)),
        )
    except InconsistentConfig as error:
        raise UserError(f"{where}: {error}") from None


def positive(value: object, field: str, where: str, kind: type = int) -> int | float:
    """`value` when it is a number above 0 (a whole one for `kind` int), else UserError naming file and field."""
    if value is None:
        raise UserError(f"{where}: {field} is missing")
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not 0 < value < float("inf"):
        raise UserError(f"{where}: {field} is {value!r}; it must be a {'whole ' * (kind is int)}number above 0")
    return value


def _rope_theta_from_hf(config: dict, where: str) -> float:
    """The base of the rotary table; UserError for a table that is scaled or covers only a part of the head."""
    theta = config.get("rope_theta", 10000.0)
    for field in ("rope_scaling", "rope_parameters"):
        rope = config.get(field) or {}
        if not isinstance(rope, dict):
            raise UserError(f"{where}: {field} is {rope!r}; it must be an object")
        rope_type = rope.get("rope_type", rope.get("type", "default"))
        if rope_type != "default":
            raise UserError(f"{where}: {field} has type {rope_type!r}; supported: 'default'")
        partial = rope.get("partial_rotary_factor", config.get("partial_rotary_factor"))
        if partial not in (None, 1):
            raise UserError(f"{where}: partial_rotary_factor is {partial!r}; supported: 1")
        theta = rope.get("rope_theta", theta)
    return float(positive(theta, "rope_theta", where, float))


def config_to_hf(config: ModelConfig, dtype: str) -> dict:
    """The `config.json` of a folder that transformers and other engines can load."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_word_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": dtype,
    }
