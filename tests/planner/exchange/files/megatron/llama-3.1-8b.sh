# llama-3.1-8b on 2x8xH100: tp=4,pp=1,dp=2,cp=2,zero=1,mbs=2,microbatches=16,recompute=selective,schedule=1f1b,context=ring
MESHWRIGHT_ARGS=(
    --tensor-model-parallel-size 4
    --pipeline-model-parallel-size 1
    --context-parallel-size 2
    --sequence-parallel
    --cp-comm-type p2p
    --micro-batch-size 2
    --global-batch-size 64
    --seq-length 1024
    --use-distributed-optimizer
    --recompute-granularity selective
    --recompute-modules core_attn
    --optimizer adam
    --overlap-grad-reduce
    --overlap-param-gather
    --bf16
)
