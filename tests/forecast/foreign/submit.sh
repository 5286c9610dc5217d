#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --gres=gpu:4

srun python train.py --lr 0.1 --epochs 90
