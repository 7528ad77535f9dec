#!/usr/bin/env bash
# Builds the image and the Flex Template; says each command before it runs it.
#     PROJECT=... REGION=... REPOSITORY=... BUCKET=... [TAG=...] [DRY_RUN=1] template.sh
# DRY_RUN=1 only says them.
set -euo pipefail
cd "$(dirname "$0")/../.."

for name in PROJECT REGION REPOSITORY BUCKET; do
    if [[ -z "${!name:-}" ]]; then
        echo "make template: $name is missing: make template PROJECT=... REGION=us-central1" \
            "REPOSITORY=... BUCKET=... [TAG=...] [DRY_RUN=1]" >&2
        exit 2
    fi
done
if [[ -z "${DRY_RUN:-}" ]] && ! command -v gcloud > /dev/null; then
    echo "make template: there is no gcloud here: install the Google Cloud CLI, or see what it" \
        "would do with DRY_RUN=1" >&2
    exit 1
fi

run() {
    printf '+'
    printf ' %q' "$@"
    printf '\n'
    [[ -n "${DRY_RUN:-}" ]] || "$@"
}

tag="${TAG:-$("${PYTHON:-python3}" -m imageshards.launch.cli --version | cut -d " " -f 2)}"
image="$REGION-docker.pkg.dev/$PROJECT/$REPOSITORY/imageshards:$tag"
template="gs://$BUCKET/templates/imageshards-$tag.json"
metadata="build/dataflow/metadata.json"

mkdir -p "$(dirname "$metadata")"
"${PYTHON:-python3}" -m imageshards.launch.dataflow.template > "$metadata"
run gcloud builds submit --project "$PROJECT" --region "$REGION" \
    --config launch/dataflow/cloudbuild.yaml --substitutions "_IMAGE=$image" .
run gcloud dataflow flex-template build "$template" --project "$PROJECT" \
    --image "$image" --sdk-language PYTHON --metadata-file "$metadata"
echo "Then, for instance:"
echo "  gcloud dataflow flex-template run imageshards-photos --project $PROJECT --region $REGION" \
    "--template-file-gcs-location $template --temp-location gs://$BUCKET/tmp" \
    "--parameters input=gs://$BUCKET/photos,output=gs://$BUCKET/dataset"
