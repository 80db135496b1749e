# gpt2 on 2x8xH100: tp=2,pp=2,dp=4,vp=2,zero=1,mbs=1,microbatches=16,recompute=full,schedule=interleaved
MESHWRIGHT_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 2
    --context-parallel-size 1
    --num-virtual-stages-per-pipeline-rank 2
    --sequence-parallel
    --micro-batch-size 1
    --global-batch-size 64
    --seq-length 1024
    --use-distributed-optimizer
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --optimizer adam
    --overlap-grad-reduce
    --overlap-param-gather
    --bf16
)
