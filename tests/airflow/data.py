"""A command that the tests run in the environment of imageshards.

python data.py images FOLDER FIRST COUNT    writes FOLDER/class?/NUMBER.jpg
python data.py names OUT                    prints {image: split} of a data set
python data.py gcs FOLDER                   serves gs://bucket/FOLDER until stdin ends, and prints
                                            the environment variables of its clients
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers import image_bytes, records

command, folder, *numbers = sys.argv[1:]
if command == "images":
    first, count = map(int, numbers)
    for number in range(first, first + count):
        image = Path(folder, f"class{number % 3}/{number:05d}.jpg")
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(image_bytes(number))
elif command == "gcs":
    from gcs_server import running

    with running() as server:
        server.put_folder(Path(folder), Path(folder).name)
        print(json.dumps(server.environment), flush=True)
        sys.stdin.read()
else:
    found = {
        record.first("image/filename").decode(): split
        for split in ("train", "test")
        for record in records(folder, split)
    }
    print(json.dumps(found))
