# gemma-3-1b on 2x8xH100: tp=1,pp=1,dp=16,zero=3,mbs=4,microbatches=1,recompute=none,schedule=1f1b
MESHWRIGHT_ARGS=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 1
    --context-parallel-size 1
    --micro-batch-size 4
    --global-batch-size 64
    --seq-length 1024
    --use-distributed-optimizer
    --use-megatron-fsdp
    --data-parallel-sharding-strategy optim_grads_params
    --optimizer adam
    --overlap-grad-reduce
    --overlap-param-gather
    --bf16
)
