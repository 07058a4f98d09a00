"""Names of classes, and the halves into which Imani et al. (appendix D) part ImageNet and CIFAR-10."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# In the order of the published labels: alphabetical.
CIFAR100 = _words(
    """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
    dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
    leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid
    otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray
    road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm"""
)

FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)

KUZUSHIJI = _words("o ki su tsu na ha ma ya re wo")

OFFICE31 = _words(
    """back_pack bike bike_helmet bookcase bottle calculator desk_chair desk_lamp desktop_computer
    file_cabinet headphones keyboard laptop_computer letter_tray mobile_phone monitor mouse mug
    paper_notebook pen phone printer projector punchers ring_binder ruler scissors speaker stapler
    tape_dispenser trash_can"""
)

# Yosinski et al.'s split of the 1000 classes of ILSVRC-2012, in torchvision's order.
IMAGENET_NATURAL = (*range(398), *range(936, 959), 970, *range(972, 999))
IMAGENET_ARTIFICIAL = tuple(sorted(set(range(1000)) - set(IMAGENET_NATURAL)))
CIFAR10_NATURAL = tuple(CIFAR10.index(c) for c in ("bird", "cat", "deer", "dog", "frog", "horse"))
CIFAR10_ARTIFICIAL = tuple(CIFAR10.index(c) for c in ("airplane", "automobile", "ship", "truck"))
