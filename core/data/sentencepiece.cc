#include "core/data/sentencepiece.h"

#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" {
#include "core/base/status.h"
}

namespace sp = sentencepiece;

struct bti_spm {
    sp::SentencePieceProcessor p;
};

namespace {

/* Runs what may throw; an exception becomes a status. */
template <class F> bt_status guarded(const char *what, F f) {
    try {
        return f();
    } catch (const std::bad_alloc &) {
        return bti_fail(BT_ENOMEM, "%s: no host memory", what);
    } catch (const std::exception &e) {
        return bti_fail(BT_EINTERNAL, "%s: %s", what, e.what());
    } catch (...) {
        return bti_fail(BT_EINTERNAL, "%s: unknown exception", what);
    }
}

/* The trainer's way of reading: done() is asked first, Next() steps on. A fault of the reader ends
 * the text; the caller looks at `failed` afterwards. */
class Lines : public sp::SentenceIterator {
  public:
    explicit Lines(const bti_spm_train *cfg) : cfg_(cfg) { Next(); }
    bool done() const override { return done_; }
    const std::string &value() const override { return value_; }
    sp::util::Status status() const override { return sp::util::Status(); }
    void Next() override {
        const char *line = nullptr;
        size_t bytes = 0;
        failed = cfg_->next(cfg_->user, &line, &bytes);
        done_ = failed != BT_OK || line == nullptr;
        if (!done_) value_.assign(line, bytes);
    }
    bt_status failed = BT_OK;

  private:
    const bti_spm_train *cfg_;
    std::string value_;
    bool done_ = false;
};

} // namespace

extern "C" bt_status bti_spm_open(const char *name, const void *model, size_t bytes,
                                  bti_spm **out) {
    return guarded(name, [&]() -> bt_status {
        std::unique_ptr<bti_spm> m(new bti_spm);
        sp::util::Status s =
            m->p.LoadFromSerializedProto({static_cast<const char *>(model), bytes});
        if (!s.ok() || m->p.GetPieceSize() <= 0)
            return bti_fail(BT_EINPUT, "%s: not a SentencePiece model, or damaged%s%s", name,
                            s.ok() ? "" : ": ", s.error_message());
        *out = m.release();
        return BT_OK;
    });
}

extern "C" void bti_spm_close(bti_spm *m) { delete m; }

extern "C" int32_t bti_spm_size(const bti_spm *m) { return m->p.GetPieceSize(); }

extern "C" void bti_spm_specials(const bti_spm *m, int32_t *bos, int32_t *eos, int32_t *unk,
                                 int32_t *pad) {
    *bos = m->p.bos_id();
    *eos = m->p.eos_id();
    *unk = m->p.unk_id();
    *pad = m->p.pad_id();
}

extern "C" bt_status bti_spm_encode(const bti_spm *m, const char *text, size_t bytes,
                                    bti_ids *ids) {
    return guarded("tokenising", [&]() -> bt_status {
        thread_local std::vector<int> found;
        sp::util::Status s = m->p.Encode({text, bytes}, &found);
        if (!s.ok()) return bti_fail(BT_EINTERNAL, "tokenising: %s", s.error_message());
        for (int id : found) BT_TRY(bti_ids_push(ids, id));
        return BT_OK;
    });
}

extern "C" bt_status bti_spm_pieces(const bti_spm *m, const char *text, size_t bytes,
                                    bti_token_fn fn, void *user) {
    return guarded("tokenising", [&]() -> bt_status {
        std::vector<std::string> pieces;
        sp::util::Status s = m->p.Encode({text, bytes}, &pieces);
        if (!s.ok()) return bti_fail(BT_EINTERNAL, "tokenising: %s", s.error_message());
        for (const std::string &piece : pieces) {
            int id = m->p.PieceToId(piece);
            if (m->p.IsControl(id)) id = m->p.unk_id(); /* text that only looks like one */
            BT_TRY(fn(user, piece.data(), piece.size(), id));
        }
        return BT_OK;
    });
}

extern "C" bt_status bti_spm_decode(const bti_spm *m, const int32_t *ids, size_t count, char **text,
                                    size_t *bytes) {
    return guarded("making text of ids", [&]() -> bt_status {
        std::string joined;
        sp::util::Status s = m->p.Decode(std::vector<int>(ids, ids + count), &joined);
        if (!s.ok()) return bti_fail(BT_EINTERNAL, "making text of ids: %s", s.error_message());
        char *copy = static_cast<char *>(bti_alloc(joined.size() + 1, 1));
        if (copy == nullptr) return BT_ENOMEM;
        std::memcpy(copy, joined.data(), joined.size());
        *text = copy;
        *bytes = joined.size();
        return BT_OK;
    });
}

extern "C" const char *bti_spm_piece(const bti_spm *m, int32_t id) {
    return m->p.IdToPiece(id).c_str();
}

extern "C" bt_status bti_spm_train_unigram(const bti_spm_train *cfg, char **model, size_t *bytes) {
    return guarded("training a vocabulary", [&]() -> bt_status {
        /* Sums are taken per thread, then over threads: their number decides the last bits, so it
         * is fixed. Nothing is sampled here, so no random number is drawn. */
        std::unordered_map<std::string, std::string> args = {
            {"model_type", "unigram"},
            {"vocab_size", std::to_string(cfg->size)},
            {"character_coverage", std::to_string(cfg->coverage)},
            {"num_threads", "4"},
            {"input_sentence_size", "0"},
            {"shuffle_input_sentence", "false"},
            {"byte_fallback", "false"},
            {"normalization_rule_name", "nmt_nfkc"},
            {"unk_id", "0"},
            {"bos_id", "1"},
            {"eos_id", "2"},
            {"pad_id", "-1"},
            {"minloglevel", "4"},
        };
        Lines lines(cfg);
        std::string proto;
        sp::util::Status s = sp::SentencePieceTrainer::Train(args, &lines, &proto);
        if (lines.failed != BT_OK) return lines.failed;
        if (!s.ok()) return bti_fail(BT_EINPUT, "%s", s.error_message());
        char *copy = static_cast<char *>(bti_alloc(proto.size(), 1));
        if (copy == nullptr) return BT_ENOMEM;
        std::memcpy(copy, proto.data(), proto.size());
        *model = copy;
        *bytes = proto.size();
        return BT_OK;
    });
}
