"""Random checkpoints in the published formats, from a seed: config.json and one safetensors file for each layer."""

import json
import pathlib
import zlib

import torch
from safetensors.torch import save_file

import shapes

E4M3_MAX, E2M1_MAX = 448.0, 6.0
# The magnitudes of E2M1, by code 0 to 7.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def power_of_two_above(x):
    """The least power of two that is at least x, for positive f32 x."""
    return torch.exp2(torch.ceil(torch.log2(x)))


def to_fp8(weight, powers):
    """(f8e4m3 [out, in], f32 scales [ceil(out / 128), ceil(in / 128)]) of an f32 weight [out, in]; `powers`: scales are powers of two."""
    rows, columns = weight.shape
    block = shapes.BLOCK
    padded = torch.nn.functional.pad(weight, (0, -columns % block, 0, -rows % block))
    blocks = padded.view(padded.shape[0] // block, block, padded.shape[1] // block, block)
    scale = blocks.abs().amax(dim=(1, 3)).clamp_(min=1e-12) / E4M3_MAX
    if powers:
        scale = power_of_two_above(scale)
    values = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    return values.view(padded.shape)[:rows, :columns].contiguous(), scale


def to_fp4(weight):
    """(int8 [out, in / 2], even elements in the low bits; f8e8m0 scales [out, in / 32]) of an f32 weight [out, in]."""
    rows, columns = weight.shape
    blocks = weight.view(rows, columns // shapes.FP4_BLOCK, shapes.FP4_BLOCK)
    scale = power_of_two_above(blocks.abs().amax(dim=2).clamp_(min=1e-12) / E2M1_MAX)
    scaled = (blocks / scale[..., None]).view(rows, columns)
    middles = torch.tensor([(a + b) / 2 for a, b in zip(E2M1, E2M1[1:])], device=weight.device)
    codes = torch.bucketize(scaled.abs(), middles).to(torch.uint8) | ((scaled < 0).to(torch.uint8) << 3)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8).contiguous(), scale.to(torch.float8_e8m0fnu)


def tensor(spec, seed, device):
    """The f32 (or int64) values of a Spec. They depend on the seed, its name and the kind of device, on nothing else."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed}/{spec.name}".encode()))
    if spec.kind == "experts":
        drawn = torch.rand((spec.shape[0], spec.limit), generator=generator, device=device)
        return drawn.argsort(dim=1)[:, : spec.shape[1]].contiguous()
    return torch.randn(spec.shape, generator=generator, device=device) * spec.std + spec.mean


def encoded(spec, values, config):
    """{name: tensor} of a Spec as its checkpoint holds it."""
    if spec.kind == "experts":
        return {spec.name: values}
    v4 = config["model_type"] == "deepseek_v4"
    kind = spec.kind if "quantization_config" in config or spec.kind == "f32" else "bf16"
    if kind == "fp8":
        # The published V4 holds E8M0 scales if its experts are FP4, else f32; V3.2's f32 scales are powers of two.
        powers = config["quantization_config"].get("scale_fmt") == "ue8m0"
        weight, scale = to_fp8(values, powers)
        if v4:
            return {
                spec.name: weight,
                spec.name.replace(".weight", ".scale"): scale.to(torch.float8_e8m0fnu) if config["expert_dtype"] == "fp4" else scale,
            }
        return {spec.name: weight, spec.name + "_scale_inv": scale}
    if kind == "fp4":
        weight, scale = to_fp4(values)
        return {spec.name: weight, spec.name.replace(".weight", ".scale"): scale}
    return {spec.name: values.to(torch.float32 if kind == "f32" else torch.bfloat16)}


def write(folder, model, layers, seed, tiny=False, experts=None, expert_dtype="fp8", device=None):
    """Writes a checkpoint into `folder`, which it makes. Returns the bytes of its tensors. Throws ValueError as shapes.config does, and
    FileExistsError if the folder holds anything."""
    config = shapes.config(model, layers, tiny, experts, expert_dtype)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder}: expected an empty folder")
    files, total, index = shapes.tensors(config), 0, {}
    for number, specs in enumerate(files):
        name = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        held = {}
        for spec in specs:
            held |= {key: value.cpu() for key, value in encoded(spec, tensor(spec, seed, device), config).items()}
        save_file(held, folder / name)
        index |= dict.fromkeys(held, name)
        total += sum(value.nbytes for value in held.values())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": index}, indent=1))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return total
