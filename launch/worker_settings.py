"""Settings of Beam's worker processes, which import this module because of `--beam_plugins`."""

from imageshards.transforms.images.silence import silence_pillow
from imageshards.transforms.references.batch import use_system_allocator

silence_pillow()
use_system_allocator()
