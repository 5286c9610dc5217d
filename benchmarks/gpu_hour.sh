#!/usr/bin/env bash
# Measurements that need a GPU, the most valuable first. Every part can be stopped, and resumes where it stopped.
#
#   benchmarks/gpu_hour.sh OUT [steps|layers|calibrate|copies|others]...     all parts by default
#
# CHRONOGRAD_DATA names the folder of CIFAR-10 and Fashion-MNIST, CHRONOGRAD_WEIGHTS that of pretrained weights. SIZE=smoke tries
# all parts on a CPU in minutes. Make and commit the predictions first: `python -m benchmarks.gpu predict --on h200 --out OUT`.
set -uo pipefail

out=$1
shift
parts=${*:-steps layers calibrate copies others}
size=${SIZE:-evening}
mkdir -p "$out"
export PYTHONUNBUFFERED=1
chronograd() { python3 -m chronograd "$@"; }

# Steps with predictions made beforehand: both modes, many batches, four precisions; eager, compiled, as CUDA graphs.
steps() {
    if [ "$size" = smoke ]; then
        python3 -m benchmarks.gpu measure --out "$out" --seconds 0.1 --only "resnet20, inference, batch 1,"
        return
    fi
    for group in steps cifar compiled; do python3 -m benchmarks.gpu measure --out "$out" --group $group; done
}

# Times of layers with and without waits, of the full pass, and of their matrix products alone.
layers() {
    if [ "$size" = smoke ]; then
        chronograd measure resnet8 --layers --input 3,32,32 --batch 2 --repeats 3 --json > "$out/layers-resnet8.json"
        return
    fi
    for network in vgg16 googlenet resnet50 alexnet; do
        for batch in 1 32; do
            file=$out/layers-$network-$batch.json
            [ -s "$file" ] || chronograd measure "torchvision:$network" --layers --batch $batch --input 3,224,224 \
                --classes 1000 --precision tf32 --json > "$file"
        done
    done
}

# The device as its calibration describes it.
calibrate() {
    [ -s "$out/local.toml" ] || chronograd calibrate --precision fp32 --precision tf32 --precision bf16 \
        --layout nchw --layout nhwc --out "$out/local.toml"
}

# One study. The second argument is the number of parallel runs; the others are overrides of its jobs.
study() {
    name=$1 parallel=$2
    shift 2
    [ -s "$out/$name/results.json" ] || chronograd study run "$name" --size "$size" --parallel "$parallel" --out "$out/$name" "$@"
}

# CUDA graphs need a GPU, so the smoke size uses no compiler.
fast=(--set training.precision=bf16 --set training.channels_last=true)
graphs=("${fast[@]}" --set training.compile=cuda-graphs)
[ "$size" = smoke ] && fast=() graphs=()

# ResNet-44 with M copies of each image.
copies() { study batch-augmentation 5 "${graphs[@]}"; }

# Studies of many short runs, each of which alone leaves the device idle.
others() {
    study transfer 5 "${fast[@]}"
    study small-networks 5 "${fast[@]}"
    study weak-labels 5 "${fast[@]}"
    study teacher-student 5 "${fast[@]}"
    study cutout 5 "${fast[@]}"
}

for part in $parts; do
    echo "== $part, $(date +%T)"
    $part 2>&1
done
echo "== done, $(date +%T)"
