# mixtral-8x7b on 2x8xH100: tp=2,pp=1,dp=8,ep=4,etp=1,zero=1,mbs=1,microbatches=8,recompute=full,schedule=1f1b
MESHWRIGHT_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --expert-model-parallel-size 4
    --expert-tensor-parallel-size 1
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
    --moe-token-dispatcher-type alltoall
    --bf16
)
