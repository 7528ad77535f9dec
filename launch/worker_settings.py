"""Settings of Beam's worker processes, which import this module because of `--beam_plugins`."""

from dataclasses import replace

from imageshards.transforms.images.silence import silence_pillow
from imageshards.transforms.references.batch import use_system_allocator
from imageshards.transforms.storage import retry

silence_pillow()
use_system_allocator()
# A bucket that a fleet begins to read scales within 20 minutes, and refuses requests until then:
# https://cloud.google.com/storage/docs/request-rate
retry.POLICY = replace(retry.POLICY, refused=1800.0)
