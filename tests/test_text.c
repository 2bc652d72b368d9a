/* Text to tokens: lines, UTF-8, tokenisers, training one. */
#include "tests/kit.h"
#include "tests/toy.h"

#include "core/base/files.h"

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- reader ---------------------------------------------------------------------------------- */

static void check_lines(const char *path, const char *const *want, int count) {
    bti_reader *r;
    const char *line;
    size_t n;
    kit_ok(bti_reader_open(path, &r));
    for (int i = 0; i < count; i++) {
        kit_ok(bti_reader_next(r, &line, &n));
        ck_assert_msg(line != NULL, "line %d of %d is missing", i + 1, count);
        ck_assert_uint_eq(n, strlen(want[i]));
        ck_assert_str_eq(line, want[i]);
        ck_assert_int_eq(bti_reader_line(r), i + 1);
    }
    for (int i = 0; i < 2; i++) {
        kit_ok(bti_reader_next(r, &line, &n));
        ck_assert_ptr_null(line);
    }
    bti_reader_close(r);
}

START_TEST(reader_lines) {
    const char *path = kit_str("%s/t", kit_tmpdir());
    static const struct {
        const char *text, *line[4];
        int count;
    } of[] = {
        {"", {0}, 0},
        {"\n", {""}, 1},
        {"a", {"a"}, 1},
        {"a\n", {"a"}, 1},
        {"a\n\n", {"a", ""}, 2},
        {"a\n\nb", {"a", "", "b"}, 3},
        {"a\r\nb\r\n", {"a", "b"}, 2},
        {"a\rb\nc\r", {"a\rb", "c\r"}, 2},
        {"\r\n\r\r\n", {"", "\r"}, 2},
        {"a\xE2\x80\xA8z\vb\fc\x1C\x1D\x1E\xC2\x85\xE2\x80\xA9\n",
         {"a\xE2\x80\xA8z\vb\fc\x1C\x1D\x1E\xC2\x85\xE2\x80\xA9"},
         1},
        /* A byte order mark, alone, cut, twice, and elsewhere. */
        {BTI_TEXT_MARK "a\nb", {"a", "b"}, 2},
        {BTI_TEXT_MARK, {0}, 0},
        {BTI_TEXT_MARK "\n", {""}, 1},
        {"\xEF\xBB", {"\xEF\xBB"}, 1},
        {BTI_TEXT_MARK BTI_TEXT_MARK "a", {BTI_TEXT_MARK "a"}, 1},
        {"a\n" BTI_TEXT_MARK "b", {"a", BTI_TEXT_MARK "b"}, 2},
    };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        kit_write_text(path, of[i].text);
        check_lines(path, of[i].line, of[i].count);
        toy_write_gz(path, "wb", of[i].text, strlen(of[i].text));
        check_lines(path, of[i].line, of[i].count);
    }
    /* Two gzip members, the line across them; the name says nothing. */
    toy_write_gz(path, "wb", "one\ntw", 6);
    toy_write_gz(path, "ab", "o\nthree", 7);
    check_lines(path, (const char *const[]){"one", "two", "three"}, 3);
    /* What pads it, or follows otherwise, is not of the text. */
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *raw = kit_read(path, &n), *more = calloc(n + 1000, 1);
        memcpy(more, raw, n);
        if (i == 1) more[n] = 0x1F;
        kit_write(path, more, i == 0 ? n + 1000 : n + 1);
        free(raw);
        free(more);
        check_lines(path, (const char *const[]){"one", "two", "three"}, 3);
    }
}
END_TEST

/* Offsets are those in the file, its byte order mark counted. */
START_TEST(offset_behind_a_mark) {
    const char *path = kit_str("%s/t", kit_tmpdir()), *line;
    bti_reader *r;
    size_t n;
    kit_write_text(path, BTI_TEXT_MARK "ab\nc\n");
    kit_ok(bti_reader_open(path, &r));
    for (int64_t at = 3; at <= 6; at += 3) {
        kit_ok(bti_reader_next(r, &line, &n));
        ck_assert_int_eq(bti_reader_offset(r), at);
    }
    bti_reader_close(r);
}
END_TEST

static void do_nothing(int number) { (void)number; }

typedef struct writer {
    const char *path;
    const void *data;
    size_t bytes;
    pthread_t reader;
} writer;

/* Bytes into a pipe, one at a time, each behind a signal to the thread that reads. */
static void *write_between_signals(void *user) {
    const writer *w = user;
    FILE *f = fopen(w->path, "w");
    setbuf(f, NULL);
    for (size_t i = 0; i < w->bytes; i++) {
        usleep(1000);
        pthread_kill(w->reader, SIGUSR1);
        fputc(((const char *)w->data)[i], f);
    }
    fclose(f);
    return NULL;
}

static void read_through_signals(const char *fifo, const void *data, size_t bytes) {
    writer w = {fifo, data, bytes, pthread_self()};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, write_between_signals, &w), 0);
    check_lines(fifo, (const char *const[]){"one", "two", "three"}, 3);
    pthread_join(thread, NULL);
}

/* Signals that mean nothing to the reader cost no byte, of plain text and of gzip. */
START_TEST(signals_while_waiting) {
    const char *fifo = kit_str("%s/fifo", kit_tmpdir()), *path = kit_str("%s/t", kit_tmpdir());
    struct sigaction action = {.sa_handler = do_nothing}; /* without SA_RESTART */
    sigaction(SIGUSR1, &action, NULL);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    read_through_signals(fifo, BTI_TEXT_MARK "one\ntwo\nthree\n", 17);
    toy_write_gz(path, "wb", "one\ntw", 6);
    toy_write_gz(path, "ab", "o\nthree", 7);
    size_t n;
    char *raw = kit_read(path, &n);
    read_through_signals(fifo, raw, n);
    free(raw);
}
END_TEST

/* A stop ends the wait, whichever thread had the signal. */
START_TEST(stopped_while_waiting) {
    const char *fifo = kit_str("%s/fifo", kit_tmpdir()), *line;
    volatile sig_atomic_t stop = 0;
    bti_reader *r;
    size_t n;
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    int fd = open(fifo, O_RDWR);
    ck_assert_int_eq(write(fd, "a\n", 2), 2);
    kit_ok(bti_reader_open_until(fifo, &stop, &r));
    kit_ok(bti_reader_next(r, &line, &n));
    ck_assert_str_eq(line, "a");
    stop = 1;
    kit_fails(bti_reader_next(r, &line, &n), BT_ESTOPPED, "fifo was being read");
    bti_reader_close(r);
    kit_fails(bti_reader_open_until(fifo, &stop, &r), BT_ESTOPPED, "fifo was being read");
    close(fd);
}
END_TEST

START_TEST(reader_long_lines_and_offsets) {
    const char *path = kit_str("%s/t", kit_tmpdir());
    size_t sizes[] = {1, 262143, 262144, 262145, 0, 1000003, 5}, total = 0, at = 0;
    for (int i = 0; i < 7; i++) total += sizes[i] + 1;
    char *text = malloc(total);
    for (int i = 0; i < 7; i++) {
        memset(text + at, 'a' + i, sizes[i]);
        at += sizes[i];
        text[at++] = '\n';
    }
    kit_write(path, text, total);
    bti_reader *r;
    kit_ok(bti_reader_open(path, &r));
    at = 0;
    for (int i = 0; i < 7; i++) {
        const char *line;
        size_t n;
        kit_ok(bti_reader_next(r, &line, &n));
        ck_assert(line != NULL && n == sizes[i] && memcmp(line, text + at, n) == 0 && line[n] == 0);
        ck_assert_int_eq(bti_reader_offset(r), (int64_t)at);
        at += n + 1;
    }
    bti_reader_close(r);
    free(text);
}
END_TEST

START_TEST(reader_faults) {
    const char *dir = kit_tmpdir(), *path = kit_str("%s/t.gz", dir);
    bti_reader *r;
    int fds = toy_open_files();
    kit_fails(bti_reader_open(kit_str("%s/none", dir), &r), BT_EINPUT, "none: No such file");
    kit_fails(bti_reader_open(dir, &r), BT_EINPUT, "is a folder");
    char *text = toy_text(2000, 0);
    toy_write_gz(path, "wb", text, strlen(text));
    free(text);
    size_t n;
    char *raw = kit_read(path, &n);
    for (int how = 0; how < 3; how++) {
        if (how == 1) raw[n / 2] ^= 0x55;
        kit_write(path, raw, how == 0 ? n / 2 : how == 1 ? n : n - 3);
        if (how == 1) raw[n / 2] ^= 0x55;
        kit_ok(bti_reader_open(path, &r));
        const char *line;
        size_t bytes;
        bt_status s;
        while ((s = bti_reader_next(r, &line, &bytes)) == BT_OK && line != NULL) continue;
        kit_fails(s, BT_EINPUT, how == 1 ? "t.gz: damaged gzip" : "t.gz: cut short");
        bti_reader_close(r);
    }
    free(raw);
    ck_assert_int_eq(toy_open_files(), fds);
}
END_TEST

START_TEST(crlf_is_said_once) {
    const char *path = kit_str("%s/t", kit_tmpdir());
    kit_write_text(path, "a\r\nb\r\nc\r\n");
    for (int quiet = 0; quiet < 2; quiet++) {
        bti_reader *r;
        const char *line = "";
        size_t n;
        toy_log[0] = 0;
        bt_set_log(toy_keep_log, NULL);
        kit_ok(bti_reader_open(path, &r));
        if (quiet) bti_reader_quiet(r);
        while (line != NULL) kit_ok(bti_reader_next(r, &line, &n));
        bti_reader_close(r);
        bt_set_log(NULL, NULL);
        ck_assert_int_eq(toy_count(toy_log, kit_str("CRLF in %s", path)), !quiet);
    }
}
END_TEST

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

static size_t encode_char(uint32_t c, char *s) {
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; c >>= 6) s[i] = (char)(0x80 | (c & 0x3F));
    s[0] = (char)(lead[n] | c);
    return n;
}

/* All characters are taken, and of all byte strings exactly as many as these make up. */
START_TEST(utf8_every_sequence) {
    char s[16] = {0};
    int bad = 0;
    for (uint32_t c = 1; c < 0x110000; c++) {
        size_t n = encode_char(c, s);
        int good = c < 0xD800 || c > 0xDFFF;
        bad += (bti_utf8_check(s, n) == n) != good;
    }
    ck_assert_int_eq(bad, 0);
    int64_t taken[4] = {0};
    for (uint32_t x = 0; x < 1u << 24; x++) {
        s[0] = (char)(x >> 16), s[1] = (char)(x >> 8), s[2] = (char)x;
        if (x < 1u << 8) taken[1] += bti_utf8_check(s + 2, 1) == 1;
        if (x < 1u << 16) taken[2] += bti_utf8_check(s + 1, 2) == 2;
        taken[3] += bti_utf8_check(s, 3) == 3;
    }
    int64_t one = 127, two = 0x800 - 0x80, three = 0x10000 - 0x800 - 0x800;
    ck_assert_int_eq(taken[1], one);
    ck_assert_int_eq(taken[2], one * one + two);
    ck_assert_int_eq(taken[3], one * one * one + 2 * one * two + three);
    /* Four bytes: every lead and second byte, the others at the edges of their range. */
    static const char edge[] = {0x7F, (char)0x80, (char)0xBF, (char)0xC0};
    int64_t four = 0;
    for (int x = 0xF0 << 8; x < 1 << 16; x++)
        for (int y = 0; y < 16; y++) {
            s[0] = (char)(x >> 8), s[1] = (char)x, s[2] = edge[y / 4], s[3] = edge[y % 4];
            four += bti_utf8_check(s, 4) == 4;
        }
    ck_assert_int_eq(four, (0x110000 - 0x10000) / 64 / 64 * 4);
}
END_TEST

START_TEST(utf8_place_of_the_fault) {
    char s[64];
    for (size_t n = 1; n < 40; n++)
        for (size_t at = 0; at < n; at++)
            for (int b = 0; b < 3; b++) {
                memset(s, 'a', n);
                s[at] = (char)(b == 0 ? 0 : b == 1 ? 0x80 : 0xFF);
                ck_assert_uint_eq(bti_utf8_check(s, n), at);
                ck_assert_uint_eq(bti_utf8_check(s, at), at);
            }
}
END_TEST

/* ---- tokenisers ------------------------------------------------------------------------------ */

static void check_golden(bti_tokenizer_kind kind, const char *model, const char *golden,
                         int64_t size, bti_special_ids special) {
    const char *model_path = kit_shared(model), *golden_path = kit_shared(golden);
    if (model_path == NULL || golden_path == NULL) {
        kit_skip("no shared/%s", model);
        return;
    }
    bti_tokenizer *t;
    kit_ok(toy_open(kind, model_path, &t));
    ck_assert_int_eq(bti_tokenizer_size(t), size);
    bti_special_ids sp = bti_tokenizer_specials(t);
    ck_assert(sp.start == special.start && sp.end == special.end);
    ck_assert(sp.unk == special.unk && sp.pad == special.pad);
    bti_reader *r;
    const char *line;
    size_t n;
    int lines = 0;
    bti_ids ids = {0};
    kit_ok(bti_reader_open(golden_path, &r));
    while (bti_reader_next(r, &line, &n) == BT_OK && line != NULL) {
        json_t *want = json_loadb(line, n, 0, NULL), *list = json_object_get(want, "ids");
        const char *text = json_string_value(json_object_get(want, "text"));
        char *back;
        lines++;
        ids.count = 0;
        kit_ok(bti_tokenizer_encode(t, text, strlen(text), &ids));
        ck_assert_msg(ids.count == (int64_t)json_array_size(list), "line %d", lines);
        for (int64_t i = 0; i < ids.count; i++)
            ck_assert_msg(ids.id[i] == json_integer_value(json_array_get(list, (size_t)i)),
                          "line %d, id %d", lines, (int)i);
        kit_ok(bti_tokenizer_decode(t, ids.id, ids.count, &back));
        ck_assert_str_eq(back, json_string_value(json_object_get(want, "decoded")));
        bti_free(back);
        json_decref(want);
    }
    ck_assert_int_eq(lines, 610);
    bti_reader_close(r);
    bti_ids_free(&ids);
    bti_tokenizer_free(t);
}

START_TEST(golden_t5) {
    check_golden(BTI_TOKENIZER_SENTENCEPIECE, "data/tokenizers/t5_32100_unigram.model",
                 "data/tokenizers/t5_golden_multi30k.jsonl", 32100,
                 (bti_special_ids){.start = 0, .end = 1, .unk = 2, .pad = 0});
}
END_TEST

START_TEST(golden_xlmr) {
    check_golden(BTI_TOKENIZER_XLMR, "data/tokenizers/xlmr_250k_unigram.model",
                 "data/tokenizers/xlmr_golden.jsonl", 250002,
                 (bti_special_ids){.start = 0, .end = 2, .unk = 3, .pad = 1});
}
END_TEST

/* Pieces that hold line ends of any kind: the text stays one line. D1. */
START_TEST(decode_gives_one_line) {
    static const char *const breakers[] = {
        "\n", "\r", "\v", "\f", "\x1C", "\x1D", "\x1E", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9",
    };
    toy_proto p;
    toy_start_model(&p, 1);
    toy_add_piece(&p, "a", -1, TOY_NORMAL);
    for (int i = 0; i < 10; i++) toy_add_piece(&p, kit_str("x%sy", breakers[i]), -2, TOY_USER);
    toy_add_piece(&p, "\xC2\x84\xE2\x80\xA7\x1F\x1B", -2, TOY_USER); /* their neighbours */
    bti_tokenizer *t;
    kit_ok(toy_open(BTI_TOKENIZER_SENTENCEPIECE, toy_save_model(&p, kit_tmpdir()), &t));
    ck_assert_int_eq(bti_tokenizer_size(t), 15);
    char *text;
    for (int32_t i = 0; i < 10; i++) {
        kit_ok(bti_tokenizer_decode(t, (int32_t[]){1, 3, 4 + i, 2}, 4, &text));
        ck_assert_str_eq(text, "ax y");
        bti_free(text);
    }
    kit_ok(bti_tokenizer_decode(t, (int32_t[]){14}, 1, &text));
    ck_assert_str_eq(text, "\xC2\x84\xE2\x80\xA7\x1F\x1B");
    bti_free(text);
    /* A lone CR is white space to every model. D2 (e). */
    bti_ids with = {0}, without = {0};
    kit_ok(bti_tokenizer_encode(t, "a\ra", 3, &with));
    kit_ok(bti_tokenizer_encode(t, "a a", 3, &without));
    ck_assert(with.count == without.count && memcmp(with.id, without.id, 12) == 0);
    bti_ids_free(&with);
    bti_ids_free(&without);
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(specials_and_pieces) {
    const char *dir = kit_tmpdir();
    toy_proto p;
    bti_tokenizer *t;
    toy_start_model(&p, 0);
    toy_add_piece(&p, "a", -1, TOY_NORMAL);
    kit_fails(toy_open(BTI_TOKENIZER_SENTENCEPIECE, toy_save_model(&p, dir), &t), BT_EINPUT,
              "hand.model: the model has no end symbol");
    kit_fails(toy_open(BTI_TOKENIZER_XLMR, toy_save_model(&p, dir), &t), BT_EINPUT, "not XLM-R's");
    toy_start_model(&p, 1);
    toy_add_piece(&p, "a", -1, TOY_NORMAL);
    kit_ok(toy_open(BTI_TOKENIZER_XLMR, toy_save_model(&p, dir), &t));
    static const char *const pieces[] = {"<s>", "<pad>", "</s>", "<unk>", "a", "<mask>"};
    ck_assert_int_eq(bti_tokenizer_size(t), 6);
    for (int32_t i = 0; i < 6; i++) ck_assert_str_eq(bti_tokenizer_piece(t, i), pieces[i]);
    ck_assert_ptr_null(bti_tokenizer_piece(t, 6));
    ck_assert_ptr_null(bti_tokenizer_piece(t, -1));
    char *text;
    kit_ok(bti_tokenizer_decode(t, (int32_t[]){0, 4, 1, 5, 4, 2}, 6, &text));
    ck_assert_str_eq(text, "aa");
    bti_free(text);
    kit_ok(bti_tokenizer_decode(t, NULL, 0, &text));
    ck_assert_str_eq(text, "");
    bti_free(text);
    kit_fails(bti_tokenizer_decode(t, (int32_t[]){6}, 1, &text), BT_EINTERNAL, "id 6 is outside");
    kit_fails(bti_tokenizer_decode(t, (int32_t[]){-1}, 1, &text), BT_EINTERNAL, "id -1");
    bti_tokenizer *u;
    kit_ok(toy_open(BTI_TOKENIZER_SENTENCEPIECE, toy_save_model(&p, dir), &u));
    ck_assert_uint_ne(bti_tokenizer_checksum(t), bti_tokenizer_checksum(u));
    bti_tokenizer_free(t);
    bti_tokenizer_free(u);
    t = toy_tokenizer();
    bti_special_ids sp = bti_tokenizer_specials(t);
    ck_assert(sp.unk == 0 && sp.start == 1 && sp.end == 2 && sp.pad == -1);
    ck_assert_int_eq(bti_tokenizer_size(t), 90);
    bti_tokenizer_free(t);
}
END_TEST

START_TEST(models_that_are_none) {
    const char *path = kit_str("%s/bad.model", kit_tmpdir());
    bti_tokenizer *t;
    kit_fails(toy_open(BTI_TOKENIZER_SENTENCEPIECE, path, &t), BT_EINPUT, "bad.model: No such");
    kit_write_text(path, "");
    kit_fails(toy_open(BTI_TOKENIZER_SENTENCEPIECE, path, &t), BT_EINPUT, "bad.model: not a");
    kit_write_text(path, "these are not the bytes of a model\n");
    kit_fails(toy_open(BTI_TOKENIZER_SENTENCEPIECE, path, &t), BT_EINPUT, "bad.model: not a");
    size_t n;
    char *raw = kit_read(toy_model(), &n);
    for (size_t cut = 1; cut < n; cut += n / 37) {
        kit_write(path, raw, cut);
        /* What is cut between two pieces is a model, only smaller. */
        if (toy_open(BTI_TOKENIZER_SENTENCEPIECE, path, &t) == BT_OK)
            bti_tokenizer_free(t);
        else
            ck_assert(strstr(bt_last_error(), "bad.model: ") != NULL);
    }
    free(raw);
}
END_TEST

typedef struct encode_job {
    const bti_tokenizer *t;
    const char *text;
    int bad;
} encode_job;

static void *encode_often(void *arg) {
    encode_job *j = arg;
    bti_ids first = {0}, ids = {0};
    bti_tokenizer_encode(j->t, j->text, strlen(j->text), &first);
    for (int i = 0; i < 300; i++) {
        ids.count = 0;
        j->bad += bti_tokenizer_encode(j->t, j->text, strlen(j->text), &ids) != BT_OK;
        j->bad += ids.count != first.count || memcmp(ids.id, first.id, (size_t)ids.count * 4) != 0;
    }
    bti_ids_free(&first);
    bti_ids_free(&ids);
    return NULL;
}

START_TEST(encode_from_several_threads) {
    bti_tokenizer *t = toy_tokenizer();
    pthread_t thread[3];
    encode_job job[3] = {{t, "bake limo", 0}, {t, "nusa teri kemo bali", 0}, {t, "zzz", 0}};
    for (int i = 0; i < 3; i++) pthread_create(&thread[i], NULL, encode_often, &job[i]);
    for (int i = 0; i < 3; i++) {
        pthread_join(thread[i], NULL);
        ck_assert_int_eq(job[i].bad, 0);
    }
    bti_tokenizer_free(t);
}
END_TEST

/* ---- training a vocabulary ------------------------------------------------------------------- */

static bt_status train(const char *dir, const char *name, int64_t size, const char *text) {
    const char *file = kit_str("%s/text", dir);
    if (text != NULL) kit_write_text(file, text);
    bti_tokenizer_config cfg = {.model = (char *)(uintptr_t)kit_str("%s/%s", dir, name),
                                .size = size};
    return bti_tokenizer_train(&cfg, &file, 1);
}

static void check_equal_files(const char *a, const char *b) {
    size_t n, m;
    char *x = kit_read(a, &n), *y = kit_read(b, &m);
    ck_assert(n == m && memcmp(x, y, n) == 0);
    free(x);
    free(y);
}

START_TEST(training_is_deterministic) {
    const char *dir = kit_tmpdir();
    char *text = toy_text(400, 1);
    kit_ok(train(dir, "a", 80, text));
    kit_ok(train(dir, "b", 80, text));
    toy_write_gz(kit_str("%s/text", dir), "wb", text, strlen(text));
    kit_ok(train(dir, "c", 80, NULL));
    free(text);
    check_equal_files(kit_str("%s/a", dir), kit_str("%s/b", dir));
    check_equal_files(kit_str("%s/a", dir), kit_str("%s/c", dir));
}
END_TEST

/* The number in the message must be right: that size works, the next one does not. */
START_TEST(training_size_out_of_range) {
    const char *dir = kit_tmpdir();
    char *text = toy_text(200, 0);
    long long most = 0, least = 0;
    kit_fails(train(dir, "m", 100000, text), BT_EINPUT, "tokenizer.size 100000 is more than");
    ck_assert_int_eq(sscanf(strrchr(bt_last_error(), ':'), ": %lld", &most), 1);
    kit_fails(train(dir, "m", 4, text), BT_EINPUT, "tokenizer.size 4 has no room");
    ck_assert_int_eq(sscanf(strstr(bt_last_error(), "at least"), "at least %lld", &least), 1);
    ck_assert(!bti_file_exists(kit_str("%s/m", dir)));
    kit_ok(train(dir, "m", most, text));
    kit_fails(train(dir, "m", most + 1, text), BT_EINPUT, "is more than");
    kit_ok(train(dir, "m", least, text));
    kit_fails(train(dir, "m", least - 1, text), BT_EINPUT, "no room");
    free(text);
}
END_TEST

START_TEST(training_keeps_every_letter) {
    const char *dir = kit_tmpdir();
    char *text = toy_text(3000, 0), *more = malloc(strlen(text) + 64);
    sprintf(more, "%s%s\n", text,
            "\xC3\x9C"
            "b\xC3\xBCng"); /* once in some 80,000 characters */
    kit_ok(train(dir, "m", 70, more));
    bti_tokenizer *t;
    bti_ids ids = {0};
    kit_ok(toy_open(BTI_TOKENIZER_SENTENCEPIECE, kit_str("%s/m", dir), &t));
    kit_ok(bti_tokenizer_encode(t,
                                "\xC3\x9C"
                                "b\xC3\xBCng",
                                7, &ids));
    for (int64_t i = 0; i < ids.count; i++)
        ck_assert_int_ne(ids.id[i], bti_tokenizer_specials(t).unk);
    bti_ids_free(&ids);
    bti_tokenizer_free(t);
    free(text);
    free(more);
}
END_TEST

START_TEST(training_text_at_fault) {
    const char *dir = kit_tmpdir();
    int fds = toy_open_files();
    kit_fails(train(dir, "m", 50, "good\nba\xE9\n"), BT_EINPUT, "text: line 2, byte 3 (offset 7");
    kit_fails(train(dir, "m", 50, ""), BT_EINPUT, "no words");
    kit_fails(train(dir, "m", 50, "\n\n\n"), BT_EINPUT, "no words");
    /* Little text, odd text: a vocabulary or a message, never a crash. */
    static const char *const odd[] = {"a",
                                      " ",
                                      "\t \t",
                                      "a\n",
                                      "\xE2\x80\xA8",
                                      "a a a a",
                                      "aaaaaaaaaaaa",
                                      "\xE2\x96\x81",
                                      "\xE2\x96\x85\n",
                                      "\xEF\xBF\xBF",
                                      "<s>\n</s> <unk>"};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++)
        for (int64_t size = 1; size < 12; size++) {
            bt_status s = train(dir, "odd", size, odd[i]);
            ck_assert_msg(s == BT_OK || (s == BT_EINPUT && bt_last_error()[0] != 0), "%s: %s",
                          odd[i], bt_last_error());
        }
    ck_assert_int_eq(toy_open_files(), fds);
    ck_assert(!bti_file_exists(kit_str("%s/m", dir)));
    bti_tokenizer_config xlmr = {
        .kind = BTI_TOKENIZER_XLMR, .model = (char *)(uintptr_t) "x.model", .size = 50};
    kit_fails(bti_tokenizer_train(&xlmr, NULL, 0), BT_EUSAGE, "not trained here");
}
END_TEST

static void add(TCase *tc) {
    tcase_add_test(tc, reader_lines);
    tcase_add_test(tc, offset_behind_a_mark);
    tcase_add_test(tc, signals_while_waiting);
    tcase_add_test(tc, stopped_while_waiting);
    tcase_add_test(tc, reader_long_lines_and_offsets);
    tcase_add_test(tc, reader_faults);
    tcase_add_test(tc, crlf_is_said_once);
    tcase_add_test(tc, utf8_every_sequence);
    tcase_add_test(tc, utf8_place_of_the_fault);
    tcase_add_test(tc, golden_t5);
    tcase_add_test(tc, golden_xlmr);
    tcase_add_test(tc, decode_gives_one_line);
    tcase_add_test(tc, specials_and_pieces);
    tcase_add_test(tc, models_that_are_none);
    tcase_add_test(tc, encode_from_several_threads);
    tcase_add_test(tc, training_is_deterministic);
    tcase_add_test(tc, training_size_out_of_range);
    tcase_add_test(tc, training_keeps_every_letter);
    tcase_add_test(tc, training_text_at_fault);
}

int main(int argc, char **argv) { return kit_main("text", add, argc, argv); }
