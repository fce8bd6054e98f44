"""The peers: which of them are installed here, and their calls. Nothing of a peer is in this repository; importing this needs no torch."""
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import pathlib

NAMES = ["FlashMLA", "vLLM", "cuDNN"]  # columns of the table
# Parts of vLLM moved between its versions: the first module that can be imported counts.
VLLM_FLASH_MLA = ["vllm.third_party.flashmla.flash_mla_interface", "vllm.v1.attention.ops.flashmla", "vllm.attention.ops.flashmla"]
VLLM_NORMS = ["vllm.models.common.ops.fused_qk_rmsnorm", "vllm.v1.attention.ops.deepseek_v4_ops"]
VLLM_OPS = ["vllm._C_stable_libtorch", "vllm._C"]


class NotOffered(Exception):
    """The installed version has no such call, in words."""


@dataclasses.dataclass(frozen=True)
class Peer:
    name: str          # column of the table
    version: str = ""  # "" where the peer is absent
    path: str = ""
    why: str = ""      # why it is absent

    @property
    def label(self):
        """As docs/results names it: "FlashMLA 1.0.0"."""
        return f"{self.name} {self.version}"

    def line(self):
        return f"{self.name}: {self.why}" if self.why else f"{self.name}: {self.version}, {self.path}"


def owner_of(module, path):
    """The installed distribution that a module's file belongs to; None where no distribution lists it."""
    path = pathlib.Path(path).resolve()
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            # Names first: resolving every file of every distribution takes seconds.
            if file.name == path.name and file.parent.name == path.parent.name and pathlib.Path(distribution.locate_file(file)).resolve() == path:
                return distribution
    # An editable install lists no files of its modules.
    names = importlib.metadata.packages_distributions().get(module, [])
    return importlib.metadata.distribution(names[0]) if names else None


def is_strata(distribution):
    return distribution is not None and distribution.metadata["Name"].lower().startswith("strata")


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def find_package(name, package):
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        return Peer(name, why=f"the package {package} is not installed")
    owner = owner_of(package, spec.origin)
    if is_strata(owner):
        return Peer(name, why=f"{spec.origin} belongs to {owner.metadata['Name']}, which is Strata itself: no peer")
    try:
        module = importlib.import_module(package)
    except (Exception, SystemExit) as error:  # whatever the import of another library raises
        return Peer(name, why=f"{spec.origin} cannot be imported: {first_line(error)}")
    if getattr(module, "__strata__", False):
        return Peer(name, why=f"{spec.origin} is Strata itself: no peer")
    return Peer(name, owner.version if owner else getattr(module, "__version__", "of unknown version"), spec.origin)


def cudnn_version(number):
    """91002 is "9.10.2"; 8905 is "8.9.5"."""
    major = number // 10000 if number >= 90000 else number // 1000
    return f"{major}.{number // 100 % (100 if major > 8 else 10)}.{number % 100}"


def find_cudnn():
    if importlib.util.find_spec("torch") is None:
        return Peer("cuDNN", why="PyTorch, through which cuDNN is called, is not installed")
    try:
        torch = importlib.import_module("torch")
        has_cudnn = torch.backends.cudnn.is_available()
    except (Exception, SystemExit) as error:  # as above
        return Peer("cuDNN", why=f"PyTorch, through which cuDNN is called, cannot be imported: {first_line(error)}")
    if not has_cudnn:
        return Peer("cuDNN", why=f"PyTorch {torch.__version__} was built without it, or finds no GPU")
    return Peer("cuDNN", f"{cudnn_version(torch.backends.cudnn.version())} (PyTorch {torch.__version__})", torch.__file__)


def find_all():
    """Every peer in the order of NAMES, those that are absent with the reason."""
    return [find_package("FlashMLA", "flash_mla"), find_package("vLLM", "vllm"), find_cudnn()]


def first_module(what, names):
    errors = []
    for name in names:
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit) as error:  # as above
            errors.append(f"{name}: {first_line(error)}")
    raise NotOffered(f"{what} cannot be imported ({'; '.join(errors)})")


def own(module, name, package):
    """A function of a module, unless another package put it there (a plug-in)."""
    function = getattr(module, name, None)
    if function is None:
        raise NotOffered(f"{module.__name__} has no {name}")
    if not (function.__module__ or "").startswith(package):
        raise NotOffered(f"{module.__name__}.{name} was replaced by {function.__module__}")
    return function


@dataclasses.dataclass
class Call:
    run: object      # runs one call and returns what the peer returns
    outputs: object  # of what run() returned: {name: tensor} with the names and the shapes of Strata's outputs


def paged_rows(inputs, name):
    """FlashMLA's view of a cache: [pages, rows, 1, bytes], or None."""
    for format, row_bytes in (("fp8_ds_mla_v4", 584), ("fp8_ds_mla", 656)):
        pages = inputs.get(f"{name}.{format}")
        if pages is not None:
            rows = int(inputs[f"{name}_shape"][0])
            return pages.as_strided((len(pages), rows, 1, row_bytes), (pages.stride(0), row_bytes, row_bytes, 1))
    return None


class FlashMla:
    """Calls of FlashMLA's Python interface, in its own package or in vLLM's."""

    OPS = ("sparse_attn_decode", "sparse_attn_prefill", "dense_attn_decode")

    def __init__(self, module, package, pads=True):
        self._get, self._pads = lambda name: own(module, name, package), pads

    def prepare(self, op, inputs):
        return getattr(self, op)(inputs)

    def sparse_attn_decode(self, inputs):
        import torch

        decode, q = self._get("flash_mla_with_kvcache"), inputs["q"]
        batch, queries, heads, dim = q.shape
        # Its kernels take 64 and 128 heads: fewer are padded, outside of what is timed, as vLLM pads them.
        padded = (64 if heads <= 64 else 128) if self._pads else heads
        sink = inputs.get("attn_sink")
        if padded > heads:
            q = torch.cat([q, q.new_zeros(batch, queries, padded - heads, dim)], 2)
            sink = None if sink is None else torch.cat([sink, sink.new_zeros(padded - heads)])
        # The first call plans, and its plan serves the calls that follow, as in a step's further layers.
        plan, splits = self._get("get_mla_metadata")(inputs["topk_length"], queries * padded, 1, padded, True, inputs["indices"].shape[-1])
        scale = inputs["softmax_scale"].item()
        # Arguments that a case does not need are left out: older versions do not have them.
        more = {"attn_sink": sink, "extra_k_cache": paged_rows(inputs, "extra_cache"),
                "extra_indices_in_kvcache": inputs.get("extra_indices"), "extra_topk_length": inputs.get("extra_topk_length")}
        more = {name: value for name, value in more.items() if value is not None}
        if dim == 512:
            more["topk_length"] = inputs["topk_length"]
        more |= {"softmax_scale": scale, "is_fp8_kvcache": True, "indices": inputs["indices"]}
        cache = paged_rows(inputs, "cache")
        return Call(lambda: decode(q, cache, None, None, 512, plan, splits, **more),
                    lambda result: {"out": result[0][:, :, :heads], "lse": result[1][:, :heads]})

    def sparse_attn_prefill(self, inputs):
        prefill, scale = self._get("flash_mla_sparse_fwd"), inputs["softmax_scale"].item()
        kv, indices = inputs["kv"].unsqueeze(1), inputs["indices"].unsqueeze(1)
        # Older versions return logarithms of base 2: `out` alone is compared.
        return Call(lambda: prefill(inputs["q"], kv, indices, scale, attn_sink=inputs["attn_sink"]), lambda result: {"out": result[0]})

    def dense_attn_decode(self, inputs):
        import torch

        decode, lengths = self._get("flash_mla_with_kvcache"), inputs["seq_lens"]
        queries = inputs["q"].shape[0] // len(lengths)
        q = inputs["q"].unflatten(0, (len(lengths), queries))
        rows, dim = inputs["cache_shape"].tolist()
        cache = inputs["cache.bf16"].view(torch.bfloat16).view(-1, rows, 1, dim)
        plan, splits = self._get("get_mla_metadata")(lengths, queries * q.shape[2], 1)
        scale = inputs["softmax_scale"].item()
        return Call(lambda: decode(q, cache, inputs["block_table"], lengths, 512, plan, splits, softmax_scale=scale, causal=True),
                    lambda result: {"out": result[0].flatten(0, 1), "lse": result[1].transpose(1, 2).flatten(0, 1)})


class Vllm:
    """vLLM's build of FlashMLA, its fused CUDA op for V4's queries and keys, and its Triton kernel for two norms."""

    OPS = (*FlashMla.OPS, "qnorm_rope_kv_insert", "rms_norm_pair")

    def prepare(self, op, inputs):
        if op not in FlashMla.OPS:
            return getattr(self, op)(inputs)
        return FlashMla(first_module("vLLM's FlashMLA", VLLM_FLASH_MLA), "vllm.").prepare(op, inputs)

    def qnorm_rope_kv_insert(self, inputs):
        import torch

        first_module("vLLM's CUDA ops", VLLM_OPS)
        name = "fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert"
        if not hasattr(torch.ops._C, name):
            raise NotOffered(f"torch.ops._C has no {name}")
        op, cache = getattr(torch.ops._C, name), inputs["cache.fp8_ds_mla_v4"]
        q, rows = inputs["q"], int(inputs["cache_shape"][0])
        arguments = [q, inputs["kv"], cache, inputs["slot_mapping"], inputs["positions"], inputs["cos_sin"]]
        if len(op.default._schema.arguments) > 8:  # newer versions pad the heads, and return the queries
            arguments.append(q.shape[1])
        arguments += [inputs["eps"].item(), rows]
        return Call(lambda: op(*arguments), lambda result: {"q_out": q if result is None else result, "cache.fp8_ds_mla_v4": cache})

    def rms_norm_pair(self, inputs):
        norm, eps = own(first_module("vLLM's norms", VLLM_NORMS), "fused_q_kv_rmsnorm", "vllm."), inputs["eps"].item()
        weights = [inputs[name].bfloat16() for name in ("q_weight", "kv_weight")]
        return Call(lambda: norm(inputs["q"], inputs["kv"], *weights, eps), lambda result: {"q_out": result[0], "kv_out": result[1]})


class Cudnn:
    """cuDNN through PyTorch's scaled_dot_product_attention."""

    OPS = ("dense_attn_prefill",)

    def prepare(self, op, inputs):
        return getattr(self, op)(inputs)

    def dense_attn_prefill(self, inputs):
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        # Contiguous keys and values, made outside of what is timed; heads before rows is a view.
        nope = inputs["q"].shape[2] - inputs["k_pe"].shape[1]
        rotated = inputs["k_pe"].unsqueeze(1).expand(-1, inputs["q"].shape[1], -1)
        key, value = torch.cat([inputs["kv"][..., :nope], rotated], -1), inputs["kv"][..., nope:].contiguous()
        q, k, v = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (inputs["q"], key, value))
        scale = inputs["softmax_scale"].item()

        def run():
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)

        return Call(run, lambda result: {"out": result[0].transpose(0, 1)})


def calls_of(peer):
    """What prepares the calls of an installed peer: prepare(op, inputs) for each op of OPS."""
    if peer.name == "FlashMLA":
        return FlashMla(importlib.import_module("flash_mla"), "flash_mla")
    return Vllm() if peer.name == "vLLM" else Cudnn()
