"""The shapes in the signatures are true: networks and features run with jaxtyping checking them."""

import subprocess
import sys
import textwrap


def test_annotated_shapes_hold():
    # In a process of its own: the checks would otherwise speak before the package's own errors do.
    code = """
    from jaxtyping import install_import_hook
    checked = ["repalign.models", "repalign.features", "repalign.papers"]
    with install_import_hook(checked, "beartype.beartype"):
        from repalign import features, models
        from repalign.papers import imani, maennel
    import inspect, sys
    from dataclasses import replace
    import torch

    x = torch.linspace(0, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    for name, options in {
        "mlp": dict(inputs=3072, outputs=2, width=4),
        "rbf": dict(inputs=3072, units=4, centers=torch.zeros(4, 3072)),
        "simple_cnn": dict(filters=4, units=4),
        "preact_resnet18": dict(k=2),
        "resnet11": dict(width=4),
        "t2t_vit": dict(depth=7, image_size=32),
        "vit_small": dict(depth=1, width=12),
    }.items():
        features.extract(models.build(name, **options), x)
    net = models.SimpleCNN(filters=4, units=4)

    called = set()
    def watch(frame, event, value):
        if event == "call":
            called.add(frame.f_code)
    sys.setprofile(watch)
    features.extract(net, x), features.activation_rates(net, x), features.layers(net, x)
    imani.rbf(x), imani.rbf(x.flatten(1), x[:1].flatten(1)), imani.rbf(x.numpy())
    photos = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    imani.hog(photos), imani.hog(photos.numpy())
    words = imani.sift_vocabulary(photos, 3)
    imani.sift_bag_of_words(photos, 3, vocabulary=words), imani.sift_bag_of_words(photos, 3)
    rows = photos[:, 0, :2, :2].flatten(1)
    atoms = imani.learn_dictionary(rows, 5, passes=1)
    imani.dictionary(rows, learned=atoms), imani.dictionary(rows, 5, passes=1)
    for kind in imani.DESIGNED:
        imani.designed(kind, photos, words=3)(photos[:2])
    for kind in imani.KINDS:
        imani.learn(kind, rows, torch.arange(12) / 12, units=5, epochs=1, passes=1)(rows)
    imani.last_hidden(models.first_available("random"), photos)
    pooled = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.AdaptiveAvgPool2d(1))
    imani.last_map(replace(models.first_available("random"), module=pooled, complete=False), photos)
    imani.class_pairs(rows, torch.arange(12) % 3, torch.rand(5))
    sys.setprofile(None)
    public = [getattr(features, name) for name in features.__all__]
    public += [imani.rbf, imani.hog, imani.sift_vocabulary, imani.sift_bag_of_words, imani.learn_dictionary]
    public += [imani.dictionary, imani.designed, imani.learn, imani.last_hidden, imani.last_map]
    public += [imani.class_pairs]
    for one in public:
        if inspect.isfunction(one):
            assert inspect.unwrap(one).__code__ in called, one.__name__

    covariance = maennel.filter_covariance(net, "conv0")
    maennel.sample_filters(net, "conv0", covariance)
    maennel.eigenvector_filters(net, "conv0", covariance.numpy())
    try:
        models.RBFNetwork(32, units=4).rbf(x[0, 0, 0])
    except Exception as error:
        print(type(error).__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "TypeCheckError" in done.stdout  # the checks were on
