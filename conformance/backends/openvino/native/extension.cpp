// What OpenVINO looks for in the library, and what a caller of the bare kernel looks for.
#include <openvino/core/extension.hpp>
#include <openvino/core/op_extension.hpp>
#include <openvino/core/parallel.hpp>

#include <algorithm>
#include <cstring>
#include <memory>

#include "qsa_prepare/kernel.hpp"
#include "qsa_prepare/operation.hpp"
#include "sparse_attention/kernel.hpp"
#include "sparse_attention/operation.hpp"
#include "sparse_attention_indexer/kernel.hpp"
#include "sparse_attention_indexer/operation.hpp"

OPENVINO_CREATE_EXTENSIONS(std::vector<ov::Extension::Ptr>({
    std::make_shared<ov::OpExtension<qsa::QSAPrepare>>(),
    std::make_shared<ov::OpExtension<qsa::EmptyOp>>(),
    std::make_shared<ov::OpExtension<qsa::SparseAttentionIndexer>>(),
    std::make_shared<ov::OpExtension<qsa::SparseAttention>>(),
}));

namespace {

// A fixed number of threads, for callers outside an inference.
class FixedWorkers : public qsa::Workers {
public:
    explicit FixedWorkers(int threads) : m_threads(std::max(1, threads)) {
#if OV_THREAD_USE_TBB
        m_arena.initialize(m_threads);
#endif
    }
    std::size_t limit() const override { return static_cast<std::size_t>(m_threads); }
    void run(std::size_t count, void (*work)(void*, std::size_t), void* state) const override {
        const auto all = [&] {
            ov::parallel_nt_static(static_cast<int>(count),
                                   [&](int worker, int) { work(state, static_cast<std::size_t>(worker)); });
        };
#if OV_THREAD_USE_TBB
        m_arena.execute(all);
#else
        all();
#endif
    }

private:
    int m_threads;
#if OV_THREAD_USE_TBB
    mutable tbb::task_arena m_arena;
#endif
};

template <class Problem, class Options>
int run(void (*compute)(const Problem&, const qsa::Workers&, const Options&), const Problem& problem, void* workers,
        Options options, int isa) {
    options.isa = static_cast<qsa::Isa>(isa);
    if (!qsa::runs_here(options.isa)) return 1;
    compute(problem, *static_cast<FixedWorkers*>(workers), options);
    return 0;
}

struct Copy {
    char* to;
    const char* from;
    std::size_t bytes, count;
};

void copy_share(void* state, std::size_t worker) {
    const auto& copy = *static_cast<const Copy*>(state);
    const std::size_t first = copy.bytes / copy.count * worker;
    const std::size_t last = worker + 1 == copy.count ? copy.bytes : first + copy.bytes / copy.count;
    std::memcpy(copy.to + first, copy.from + first, last - first);
}

}  // namespace

// The bare kernel through the C interface, to be run and timed on raw pointers (ctypes). Nothing is checked.
OPENVINO_EXTENSION_C_API void* qsa_workers_open(int threads) { return new FixedWorkers(threads); }
OPENVINO_EXTENSION_C_API void qsa_workers_close(void* workers) { delete static_cast<FixedWorkers*>(workers); }

// isa as in qsa::Isa; each returns 0, or 1 when this machine does not run it.
OPENVINO_EXTENSION_C_API int qsa_prepare(const qsa::Problem* problem, void* workers, int isa) {
    return run(qsa::prepare, *problem, workers, qsa::Options{}, isa);
}
OPENVINO_EXTENSION_C_API int qsa_indexer_select(const qsa::indexer::Problem* problem, void* workers, int isa) {
    return run(qsa::indexer::select, *problem, workers, qsa::indexer::Options{}, isa);
}
OPENVINO_EXTENSION_C_API int qsa_attention_attend(const qsa::attention::Problem* problem, void* workers, int isa) {
    return run(qsa::attention::attend, *problem, workers, qsa::attention::Options{}, isa);
}

OPENVINO_EXTENSION_C_API std::size_t qsa_bytes_to_move(const qsa::Problem* problem) { return qsa::bytes_to_move(*problem); }
OPENVINO_EXTENSION_C_API std::size_t qsa_indexer_bytes_to_move(const qsa::indexer::Problem* problem) {
    return qsa::indexer::bytes_to_move(*problem);
}
OPENVINO_EXTENSION_C_API std::size_t qsa_attention_bytes_to_move(const qsa::attention::Problem* problem) {
    return qsa::attention::bytes_to_move(*problem);
}
OPENVINO_EXTENSION_C_API int qsa_best_isa() { return static_cast<int>(qsa::best_isa()); }

// A plain copy with the same threads, the yardstick for the kernel.
OPENVINO_EXTENSION_C_API void qsa_plain_copy(void* to, const void* from, std::size_t bytes, void* workers) {
    const auto& all = *static_cast<FixedWorkers*>(workers);
    Copy copy{static_cast<char*>(to), static_cast<const char*>(from), bytes, all.limit()};
    all.run(copy.count, copy_share, &copy);
}
