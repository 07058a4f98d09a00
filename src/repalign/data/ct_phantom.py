"""A body phantom in place of the UCI CT slices: 384 features of an axial slice, its height as target.

Forty-eight patients of different build are made of soft-edged ellipses: head, trunk, skull, spine,
ribs, shoulders, pelvis; lungs, windpipe, sinuses, bowel gas. Each is cut into 256 slices over a part of
the body, as scans are. A slice is described like one of the UCI set (Graf et al. 2011): a polar
histogram of bone (24 sectors × 10 rings) and one of air inside the body (24 × 6); −0.25 marks bins of the
second that lie outside the body. Height runs from 0 at the crown; the scans end at the hips, at 98.

Lengths are centimetres of a person of 180; x points to the patient's left, y to the front.
"""

from __future__ import annotations

import numpy as np

from repalign.data.acquire.formats import Array

Length = Array | float | int
PATIENTS, SLICES = 48, 256
SECTORS, BONE_RINGS, AIR_RINGS = 24, 10, 6
RADIUS = 18.0
_SEED = 206  # the number of the CT set at UCI
_EDGE = 0.45  # half the blur of an edge: a pixel and the thickness of a slice


def generate() -> tuple[Array, Array]:
    """All slices: features (12288, 384) and heights (12288,), float32, the same on every call."""
    rng = np.random.Generator(np.random.PCG64(_SEED))
    build = patients(rng)
    top = rng.choice([2.0, 18.0, 30.0, 45.0], PATIENTS, p=[0.3, 0.1, 0.4, 0.2])
    bottom = np.minimum(top + rng.uniform(30, 96, PATIENTS), 98.0)
    heights = np.linspace(top, bottom, SLICES, axis=1)  # (patient, slice)
    z, who = heights.ravel(), np.repeat(np.arange(PATIENTS), SLICES)
    x, y = polar_grid()
    features = np.empty((len(z), SECTORS * (BONE_RINGS + AIR_RINGS)), np.float32)
    # Neighboring heights together: a block then meets few of the organs, and the others cost nothing.
    for block in np.array_split(np.argsort(z, kind="stable"), 192):
        bone, air, body = tissues(z[block], {k: v[who[block]] for k, v in build.items()}, x, y)
        features[block] = histogram(bone, air, body)
    # Counts scatter with their root: a bin that never meets bone stays exactly zero.
    noise = rng.standard_normal(features.shape, dtype=np.float32)
    scattered = np.maximum(features + 0.004 * np.sqrt(np.maximum(features, 0)) * noise, 0)
    features = np.where(features > 0, scattered, features)
    return features.round(5), z.astype(np.float32)


def image(height: float, patient: int = 0, size: int = 128) -> Array:
    """A slice to look at, (size, size): 0 outside, 0.5 soft tissue, 1 bone, 0.1 air inside the body."""
    build = {k: v[[patient]] for k, v in patients(np.random.Generator(np.random.PCG64(_SEED))).items()}
    axis = np.linspace(-RADIUS, RADIUS, size)
    x, y = (grid.ravel() for grid in np.meshgrid(axis, -axis))
    bone, air, body = (part[0] for part in tissues(np.array([height]), build, x, y))
    return (body * (0.5 + 0.5 * bone) * (1 - 0.8 * air)).reshape(size, size)


def patients(rng: np.random.Generator) -> dict[str, Array]:
    """Build of each patient: one value, or for bowel gas one row, per patient."""
    size = PATIENTS

    def around(center: float, spread: float) -> Array:
        return rng.uniform(center - spread, center + spread, size)

    return {
        "width": around(1.0, 0.15),
        "depth": around(1.0, 0.15),
        "fat": around(1.5, 1.2),
        "stretch": around(0.0, 3.0),  # how far landmarks are from their mean height, mid-body
        "shift": around(0.0, 1.5),  # the same, everywhere
        "dx": around(0.0, 1.2),  # how the patient lies in the scanner
        "dy": around(0.0, 1.2),
        "turn": around(0.0, 0.12),
        "breath": around(1.0, 0.15),
        "rib_gap": around(2.6, 0.25),
        "rib_phase": around(0.5, 0.5),
        "bone": around(1.0, 0.12),
        "gas": rng.uniform(0, 1, (size, 6, 4)),  # six bubbles: x, y, z, size
    }


def tissues(z: Array, p: dict[str, Array], x: Array, y: Array) -> tuple[Array, Array, Array]:
    """Share of bone, of air and of body, each (slices, points), at points (x, y) of slices at z."""
    z, x, y = z.astype(np.float32), x.astype(np.float32), y.astype(np.float32)
    p = {k: v.astype(np.float32) for k, v in p.items()}
    z = z + p["shift"] + p["stretch"] * np.sin(np.pi * z / 100)
    col = {k: v[:, None] for k, v in p.items() if v.ndim == 1}
    cos, sin = np.cos(col["turn"]), np.sin(col["turn"])
    u, v = x - col["dx"], y - col["dy"]
    u, v = (cos * u + sin * v) / col["width"], (cos * v - sin * u) / col["depth"]
    h, fat = z[:, None], col["fat"]
    bone, air = np.zeros_like(u), np.zeros_like(u)

    def ball(
        cx: Length, cy: Length, cz: Length, rx: Length, ry: Length, rz: Length, grow: Length = 1.0
    ) -> Array:
        """An ellipsoid cut at each height; nothing is computed where no slice meets it."""
        cut = 1 - ((z - cz) / (rz * np.ravel(grow))) ** 2
        out = np.zeros_like(u)
        if len(rows := np.flatnonzero(cut > 0)):
            scale = (np.sqrt(cut[rows]) * np.broadcast_to(np.ravel(grow), z.shape)[rows])[:, None]
            out[rows] = _soft(u[rows], v[rows], cx, cy, rx * scale, ry * scale)
        return out

    trunk = _soft(u, v, 0, 0, _profile(z, _TRUNK_X) + fat, _profile(z, _TRUNK_Y) + fat)
    body = np.maximum(trunk, ball(0, 1, 11, 7.6, 9.6, 12.5))

    # Skull and jaw: a shell, and its lower front.
    skull = ball(0, 1, 11, 7.0, 9.0, 11.8) - ball(0, 1, 11, 6.3, 8.2, 10.9)
    jaw = ball(0, 5, 20.5, 5.2, 4.8, 3.2) - ball(0, 4, 20.5, 4.2, 4.2, 3.4)
    bone += np.maximum(skull, 0) + np.maximum(jaw, 0)
    air += ball(0, 7.2, 13, 1.8, 1.6, 3.0) + ball(0, 3.5, 18, 1.2, 2.0, 4.0)

    # Spine: thicker at each vertebra and towards the sacrum, with a canal; curved front to back.
    back = -5.2 - 1.8 * np.sin(2 * np.pi * (h - 20) / 75)
    beat = np.cos(2 * np.pi * h / (2.0 + h / 60))
    thick = (1.3 + h / 80 + 0.25 * beat) * (1 + 1.4 * np.exp(-(((h - 96) / 5) ** 2)))
    spine = _soft(u, v, 0, back, thick, 0.85 * thick) * (h > 18)
    process = _soft(u, v, 0, back - thick - 1.0, 0.6, 1.3 + 0.4 * beat) * (h > 20)
    canal = _soft(u, v, 0, back - thick, 0.75, 0.75) * (h > 18)
    bone += np.maximum(spine + process - canal, 0)

    # Ribs: bands on the chest wall that sink towards the front; sternum, collarbones, shoulder blades.
    if ((z > 28) & (z < 66)).any():
        rx, ry = _profile(z, _TRUNK_X) - 1.2, _profile(z, _TRUNK_Y) - 1.2
        distance = np.sqrt((u / rx) ** 2 + (v / ry) ** 2)
        sink = 4.0 * (1 + v / (np.hypot(u, v) + 1e-6))
        band = 0.5 + 0.5 * np.cos(2 * np.pi * ((h - sink) / col["rib_gap"] + col["rib_phase"]))
        inside = np.clip((h - 29) / 3, 0, 1) * np.clip((65 - h) / 4, 0, 1)
        bone += np.clip(1 - np.abs(distance - 1) * ry / 0.7, 0, 1) * band**2 * inside
        bone += ball(0, 9.6, 45, 1.9, 0.8, 10)
        for side in (-1, 1):
            bone += ball(side * 7.5, 6.5, 30.5, 6.0, 0.9, 2.0) + ball(side * 10.5, -7.6, 40, 4.2, 0.7, 8.5)

    # Pelvis: two wings, each a shell, and the heads of the femurs.
    for side in (-1, 1):
        wing = ball(side * 7.5, -1.5, 94, 5.8, 6.0, 10) - ball(side * 6.6, 0.2, 94, 5.4, 5.8, 10.5)
        bone += np.maximum(wing, 0) + ball(side * 9.0, 0.5, 101, 2.4, 2.5, 4.0)

    for side, wide in ((-1, 5.9), (1, 5.3)):
        air += ball(side * 7.2, 0.8, 47, wide, 7.4, 14.5, p["breath"])
    air += _soft(u, v, 0, back + thick + 2.4, 0.9, 0.8) * ((h > 22) & (h < 44))
    for bubble in p["gas"].transpose(1, 2, 0)[:, :, :, None]:
        cx, cy, cz, r = 16 * bubble[0] - 8, 8 * bubble[1], 66 + 26 * bubble[2], 1.0 + 2.0 * bubble[3]
        cut = np.sqrt(np.maximum(1 - ((h - cz) / (1.4 * r)) ** 2, 0))
        if (cut > 0).any():
            air += _soft(u, v, cx, cy, r * cut + 1e-3, r * cut + 1e-3) * (cut > 0)
    bone = np.clip(bone, 0, 1) * col["bone"]
    return bone * body, np.clip(air, 0, 1) * (1 - np.minimum(bone, 1)) * body, body


def polar_grid() -> tuple[Array, Array]:
    """Points at which a slice is sampled: two directions per sector, three radii per ring of bone."""
    angle = (np.arange(2 * SECTORS) + 0.5) * 2 * np.pi / (2 * SECTORS)
    radius = (np.arange(3 * BONE_RINGS) + 0.5) * RADIUS / (3 * BONE_RINGS)
    return np.outer(np.cos(angle), radius).ravel(), np.outer(np.sin(angle), radius).ravel()


def histogram(bone: Array, air: Array, body: Array) -> Array:
    """Mean share of bone and of air in each polar bin, (slices, 240 + 144)."""
    n = len(bone)

    def bins(share: Array, rings: int) -> Array:
        return share.reshape(n, SECTORS, 2, rings, 3 * BONE_RINGS // rings).mean((2, 4)).reshape(n, -1)

    filled, inside = bins(air, AIR_RINGS), bins(body, AIR_RINGS)
    return np.concatenate([bins(bone, BONE_RINGS), np.where(inside > 0.02, filled, -0.25)], axis=1)


def _soft(u: Array, v: Array, cx: Length, cy: Length, rx: Length, ry: Length) -> Array:
    """1 inside an ellipse, 0 outside, a ramp across its edge."""
    inside = 1 - ((u - cx) / rx) ** 2 - ((v - cy) / ry) ** 2
    return np.clip(0.5 + inside * np.minimum(rx, ry) / (4 * _EDGE), 0, 1)


# Half-widths of neck and trunk at heights; between them straight lines.
_HEIGHTS = np.array([0, 20, 25, 30, 36, 48, 62, 75, 88, 98, 110])
_TRUNK_X = np.array([0.1, 5.2, 5.6, 10.5, 15, 15.2, 14, 13, 14.5, 15.5, 15.5])
_TRUNK_Y = np.array([0.1, 5.6, 5.8, 7.5, 9.5, 10.6, 9.8, 9.0, 9.6, 10.2, 9.8])


def _profile(z: Array, widths: Array) -> Array:
    return np.interp(z, _HEIGHTS, widths).astype(np.float32)[:, None]
