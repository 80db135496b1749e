# phi-3-mini on 2x8xH100: tp=2,pp=4,dp=2,zero=1,mbs=1,microbatches=32,recompute=full_layers:2,schedule=1f1b,stage_blocks=7+9+9+7
MESHWRIGHT_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size 4
    --context-parallel-size 1
    --pipeline-model-parallel-layout 'Et*7|t*9|t*9|t*7L'
    --sequence-parallel
    --micro-batch-size 1
    --global-batch-size 64
    --seq-length 1024
    --use-distributed-optimizer
    --recompute-granularity full
    --recompute-method block
    --recompute-num-layers 2
    --optimizer adam
    --overlap-grad-reduce
    --overlap-param-gather
    --bf16
)
