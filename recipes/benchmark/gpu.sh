#!/usr/bin/env bash
# What to measure where a GPU is at hand. Each call runs the next slice, of at most eight minutes, and needs no network:
#
#     recipes/benchmark/gpu.sh FOLDER          # again and again until it says that nothing is left; results are in FOLDER
#
# The first slices need torch alone, the others this package's dependencies. Of the environment: PYTHON; SECONDS_EACH of a slice; DATA, a folder
# with ptb/ in it (default: data/), without which the paper's sizes are left out; DEVICE=cpu and TINY=1 try the script without a GPU.
set -u
cd "$(dirname "$0")/../.."
out=${1:?"usage: recipes/benchmark/gpu.sh FOLDER"}
mkdir -p "$out"
python=${PYTHON:-python} seconds=${SECONDS_EACH:-480} data=${DATA:-data} device=${DEVICE:-cuda}
export PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH} HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1
minutes=$((seconds / 60 - 1)) steps=10 small="" engine="" sizes="" extra=""
[ "$device" = cpu ] && extra="--use_cpu true"
if [ "${TINY:-}" ]; then
    steps=2 engine="--steps 3 --sequences 4 --length 6 --vocabulary 30 --width 8 --methods autograd Tape Reversible"
    sizes="--steps 3 --num_sequences 4 --sequence_length 6 --vocab_size 60 --batch_size 4 --methods autograd Tape Reversible"
    small="--teacher_steps 5 --inner_steps 4 --num_students 1 --eval_students 1 --baselines full --sequence_length 8"
fi

slice() { # NAME, a condition, and a command: where it is open, run it and end
    local name=$1 condition=$2 code started=$SECONDS
    shift 2
    grep -qs "^done $name " "$out/slices.txt" && return
    [ "$(grep -cs "^failed $name " "$out/slices.txt")" -ge 2 ] 2>/dev/null && return
    if ! eval "$condition" >/dev/null 2>&1; then
        echo "left out: $name ($condition)"
        return
    fi
    echo "== $name: $*" | tee -a "$out/log.txt"
    timeout --kill-after 10 "$seconds" "$@" >>"$out/log.txt" 2>&1
    code=$?
    case $code in
    0) echo "done $name $((SECONDS - started)) s" ;;
    124 | 137 | 75) echo "open $name: its time is over, it goes on" ;;
    *) echo "failed $name with $code, see log.txt" ;;
    esac | tee -a "$out/slices.txt"
    exit 0
}

distilled() { # NAME CONFIG SETTINGS: a distillation; its table is kept, and the seconds of its last outer step
    local name=$1
    shift
    "$python" "$@" $extra --output_dir "outputs/gpu/$name" --disable_tqdm true --logging_steps 1 || return
    cp "outputs/gpu/$name/table.csv" "$out/$name.csv"
    grep -ho '"seconds_per_step": [0-9.e-]*' "outputs/gpu/$name"/*/trainer_state.json 2>/dev/null | tail -1 | sed "s/^/$name /" >>"$out/steps.txt"
}
export -f distilled
export python extra out

has() { "$python" -c "import $1"; }
all="has transformers && has datasets && has evaluate"
run() { slice "$1" "$all" bash -c 'distilled "$@"' _ "$@"; }

slice engine "has torch" "$python" recipes/benchmark/gpu_engine.py "$out/engine.jsonl" --device "$device" --minutes "$minutes" $engine
[ "$device" = cpu ] || slice tests "$all && has pytest" env PYTHONPATH=.:tests/device "$python" -m pytest -q -p fake_cuda -m gpu tests
slice benchmark "$all && has psutil" "$python" recipes/benchmark/benchmark.py --device "$device" --output_dir "$out/benchmark" \
    --methods autograd torch.utils.checkpoint GradientGraphs Tape Checkpoint Reversible "Tape, compiled" --steps 50 100 400 --time_limit 200 $sizes
run text_teacher recipes/ptb.py --config recipes/configs/demo.yaml $small
run items_teacher recipes/recsys.py --config recipes/configs/demo_recsys.yaml $small
for adjoint in tape reversible; do
    run "text_soft_$adjoint" recipes/ptb.py --config recipes/configs/demo.yaml $small --inputs soft --labels shared --storage exact \
        --inner_steps 100 --inner_learning_rate 0.02 --max_steps "$steps" --adjoint "$adjoint" ${TINY:+--inner_steps 4}
done
run items_own recipes/recsys.py --config recipes/configs/demo_recsys.yaml $small --inputs tokens --labels own --storage exact \
    --inner_steps 100 --inner_learning_rate 0.02 --max_steps "$steps" ${TINY:+--inner_steps 4}
all="$all && [ -d '$data/ptb' ]"
for size in 400 2000; do # the paper's 8,000 outer steps are extrapolated from these
    run "paper_${size}x50" recipes/ptb.py --config recipes/configs/demo.yaml --dataset ptb --data_dir "$data/ptb" --inputs soft --labels shared \
        --storage exact --num_sequences "$size" --sequence_length 50 --latent_dim 8 --inner_steps 600 --synthetic_batch_size 20 \
        --per_device_train_batch_size 256 --learning_rate 0.01 --inner_learning_rate 0.01 --inner_betas 0.5 0.999 --inner_epsilon 1e-4 \
        --max_steps "$steps" --num_students 1 --eval_students 1 --baselines full $small \
        ${TINY:+--inner_steps 4 --num_sequences 4 --synthetic_batch_size 4 --per_device_train_batch_size 8}
done
echo "nothing is left; results are in $out"
