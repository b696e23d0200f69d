/* The jars of a pool, made without Python: its first process is cloned from the zygote, which sleeps meanwhile and lends it
 * its memory (as vfork does), carries out the steps that the zygote has prepared, forks the process that becomes the
 * code, and then executes this very file, as the jar's pid 1. So a jar has one copy of the interpreter, not two.
 *
 * There is no C library here, and nothing that a linker would have to fill in: the file can be loaded by ctypes, and
 * executed. `scripts/generate.py` compiles it; the result is in the package.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SLOTS = 128, ARGUMENTS = 6, MOST_SAID = 200, NUMBERS = 5, FAILED = 125, RSEQ_NONE = -2 };

/* As guest/pool/jar_steps.py has them. */
struct step {
    const char *what;
    long number;
    long arguments[ARGUMENTS];
    long from_slots; /* a bit for each argument that is the number of a slot */
    long kept;       /* the slot for the answer, or -1 */
    long forgiven;   /* an error that is none, or 0 */
};

struct steps {
    const struct step *first;
    long count;
};

struct jar {
    struct steps of_jar;  /* all that is done before the code's process is forked */
    struct steps of_code; /* and what that one does */
    long (*fork)(void); /* the C library's, which sets its own house in order in the child */
    const int *error;   /* and where that one has its errors */
    long forking;       /* whether it is in there: whoever dies then leaves its locks as they are, in this memory */
    long program;       /* this file */
    long believes;      /* whether the code's own word for its end is enough */
    long leaving;       /* the signal that is that word */
    int *rseq;          /* what the C library has registered, or NULL: a process that shares memory loses it */
    long groups;        /* for how many files of control groups the steps are */
    long pending;       /* whether there is a word that has come, and nothing has been done about it */
    long hurried;       /* what it was */
    long received;      /* how many such files have come with it */
    long slots[SLOTS];  /* in which they are, with the socket of the run before them */
};

enum { CONTROL = 0, GATE = 1, GROUPS = 8, MOST_GROUPS = 16 };

#if defined(__x86_64__)
static inline long call(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long answer;
    __asm__ volatile("syscall"
                     : "=a"(answer)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return answer;
}
enum { RSEQ_SIGNATURE = 0x53053053 };
__asm__(".globl _start\n.hidden _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall be_init\n\thlt\n");
#else
#error "not written for this machine: there the zygote does it in Python"
#endif

#define CALL0(number) call(number, 0, 0, 0, 0, 0, 0)
#define CALL1(number, a) call(number, (long)(a), 0, 0, 0, 0, 0)
#define CALL2(number, a, b) call(number, (long)(a), (long)(b), 0, 0, 0, 0)
#define CALL3(number, a, b, c) call(number, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define CALL4(number, a, b, c, d) call(number, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define CALL5(number, a, b, c, d, e) call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CALL6(number, a, b, c, d, e, f) call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static __attribute__((noreturn)) void leave(long status) {
    for (;;) CALL1(SYS_exit_group, status);
}

static char *put_text(char *at, const char *end, const char *text) {
    while (*text && at < end) *at++ = *text++;
    return at;
}

static char *put_number(char *at, const char *end, long number) {
    char digits[24], *first = digits + sizeof digits;
    *--first = 0;
    do *--first = (char)('0' + number % 10); while (number /= 10);
    return put_text(at, end, first);
}

static long number_in(const char *text) {
    long number = 0;
    while (*text) number = 10 * number + (*text++ - '0');
    return number;
}

/* --- the first process, in the zygote's memory ------------------------------------------------------------------- */

static __attribute__((noreturn)) void complain(const struct jar *jar, const char *what, long error) {
    char said[MOST_SAID], *end = said + sizeof said, *at = said;
    *at++ = 'F';
    at = put_text(at, end - 24, what);
    at = put_text(at, end, ": error ");
    at = put_number(at, end, error);
    CALL6(SYS_sendto, jar->slots[GATE], said, at - said, MSG_NOSIGNAL, 0, 0);
    leave(FAILED);
}

static void carry_out(struct jar *jar, const struct steps *steps) {
    for (const struct step *step = steps->first; step < steps->first + steps->count; step++) {
        long arguments[ARGUMENTS];
        for (int index = 0; index < ARGUMENTS; index++) {
            long given = step->arguments[index];
            arguments[index] = step->from_slots >> index & 1 ? jar->slots[given] : given;
        }
        long answer = CALL6(step->number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                            arguments[5]);
        if (answer < 0 && -answer != step->forgiven) complain(jar, step->what, -answer);
        if (step->kept >= 0) jar->slots[step->kept] = answer;
    }
}

/* Be pid 1: in memory of its own, with nothing of the zygote's. */
static __attribute__((noreturn)) void execute(const struct jar *jar, long code, long passed) {
    char words[NUMBERS][24];
    const long numbers[NUMBERS] = {jar->slots[GATE], code, passed, jar->believes, jar->leaving};
    const char *arguments[NUMBERS + 2] = {"init"}, *environment[] = {NULL};
    for (int index = 0; index < NUMBERS; index++) {
        *put_number(words[index], words[index] + 23, numbers[index]) = 0;
        arguments[index + 1] = words[index];
    }
    CALL3(SYS_fcntl, jar->slots[GATE], F_SETFD, 0);
    CALL3(SYS_fcntl, passed, F_SETFD, 0);
    long answer = CALL5(SYS_execveat, jar->program, "", arguments, environment, AT_EMPTY_PATH);
    complain(jar, "execute pid 1", -answer);
}

/* In the new namespaces. Returns only in the code's process, with memory of its own, once pid 1 has let go of the
 * zygote's. */
static __attribute__((noinline)) void make(struct jar *jar) {
    int ends[2];
    carry_out(jar, &jar->of_jar);
    long answer = CALL2(SYS_pipe2, ends, O_CLOEXEC);
    if (answer < 0) complain(jar, "pipe", -answer);
    jar->forking = 1;
    long code = jar->fork();
    if (code != 0) jar->forking = 0;
    if (code < 0) complain(jar, "fork", *jar->error);
    if (code > 0) execute(jar, code, ends[1]);
    char nothing;
    CALL1(SYS_close, ends[1]);
    while (CALL3(SYS_read, ends[0], &nothing, 1) == -EINTR) continue;
    CALL1(SYS_close, ends[0]);
    CALL1(SYS_close, jar->program);
    if (jar->rseq && CALL4(SYS_rseq, jar->rseq, 32, 0, RSEQ_SIGNATURE) < 0) jar->rseq[1] = RSEQ_NONE;
    carry_out(jar, &jar->of_code);
}

/* --- the zygote --------------------------------------------------------------------------------------------------- */

/* Wait for a word, and for what comes with it: less than nothing if there will be none any more. */
static long receive(struct jar *jar, int *descriptors, long most) {
    char word[64];
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE((1 + MOST_GROUPS) * sizeof(int))];
    } ancillary;
    struct iovec part = {word, sizeof word};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &ancillary};
    long length;
    message.msg_controllen = sizeof ancillary;
    while ((length = CALL3(SYS_recvmsg, jar->slots[CONTROL], &message, MSG_CMSG_CLOEXEC)) == -EINTR) continue;
    if (length <= 0) return -1;
    jar->hurried = word[0] == 'h';
    if (message.msg_controllen < sizeof ancillary.header) return 0;
    long count = (long)((ancillary.header.cmsg_len - CMSG_LEN(0)) / sizeof(int));
    for (long index = 0; index < count; index++)
        descriptors[index] = ((const int *)CMSG_DATA(&ancillary.header))[index];
    if (!(message.msg_flags & MSG_CTRUNC) && count < most) return count;
    while (count > 0) CALL1(SYS_close, descriptors[--count]); /* not all of them: no jar without one of its groups */
    return 0;
}

/* In new namespaces, while the zygote sleeps. */
static __attribute__((noinline)) long clone_one(struct jar *jar) {
    const long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS;
    long pid = CALL5(SYS_clone, flags | CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) make(jar);
    __asm__ volatile("" ::: "memory"); /* no jump out of this frame: the zygote's return address is in it */
    return pid;
}

/* Clone a jar for each word: 0 in a code's process, and in the zygote 1 if the steps are not for what came with it.
 * Here nothing of Python's is touched: what is, the zygote and the jar made in between would each have to copy. */
__attribute__((visibility("default"))) long belljar_serve(struct jar *jar) {
    for (;;) {
        if (!jar->pending) {
            int descriptors[2 + MOST_GROUPS]; /* one more than is asked for fits into the room for them */
            long count = receive(jar, descriptors, 2 + MOST_GROUPS);
            if (count < 0) leave(0);
            if (count == 0) continue;
            jar->received = count - 1;
            jar->slots[GATE] = descriptors[0];
            for (long index = 1; index < count; index++) jar->slots[GROUPS + index - 1] = descriptors[index];
        }
        jar->pending = jar->received != jar->groups;
        if (jar->pending) return 1;
        if (clone_one(jar) == 0) return 0;
        if (jar->forking) leave(FAILED); /* the stage starts another */
        CALL1(SYS_close, jar->slots[GATE]);
        for (long index = 0; index < jar->received; index++) CALL1(SYS_close, jar->slots[GROUPS + index]);
    }
}

/* --- pid 1 of a jar, in memory of its own ------------------------------------------------------------------------ */

struct __attribute__((packed)) end {
    char word;
    int32_t status;
    uint64_t microseconds, most_bytes;
};

static uint64_t microseconds_of(const struct rusage *usage) {
    const struct timeval *user = &usage->ru_utime, *kernel = &usage->ru_stime;
    return 1000000 * (uint64_t)(user->tv_sec + kernel->tv_sec) + (uint64_t)(user->tv_usec + kernel->tv_usec);
}

/* Wait for the code. Python that runs to its end says so in a signal, just before it exits: a process takes longer to
 * die than to run. Then `usage` stays as it is. It is the code that could send it earlier, as it could exit earlier;
 * either way it is ended now. Returns whether it has really ended. */
static int await(long code, int leaving, long believes, int *status, struct rusage *usage) {
    uint64_t heard = 1ULL << (SIGCHLD - 1) | 1ULL << (leaving - 1);
    siginfo_t info;
    for (;;) {
        long number = CALL4(SYS_rt_sigtimedwait, &heard, &info, NULL, sizeof heard);
        if (number == leaving && believes && info.si_pid == code) {
            *status = (info.si_value.sival_int & 0xff) << 8;
            return 0;
        }
        for (;;) { /* orphans come to us, too */
            long ended = CALL4(SYS_wait4, -1, status, WNOHANG, usage);
            if (ended == code) return 1;
            if (ended <= 0) break;
        }
    }
}

__attribute__((used, noreturn)) static void be_init(long *stack) {
    char **words = (char **)(stack + 1);
    if (stack[0] != NUMBERS + 1 || CALL0(SYS_getpid) != 1) leave(FAILED); /* this is no jar's pid 1 */
    long gate = number_in(words[1]), code = number_in(words[2]), passed = number_in(words[3]);
    struct end end = {.word = 'E'};
    struct rusage usage = {0};
    int status = 0;
    CALL2(SYS_prctl, PR_SET_DUMPABLE, 0);
    CALL2(SYS_prctl, PR_SET_NAME, "init");
    CALL1(SYS_close, passed); /* the code's process goes on */
    int over = await(code, (int)number_in(words[5]), number_in(words[4]), &status, &usage);
    CALL2(SYS_kill, -1, SIGKILL); /* all others of this jar: only its pid 1 can mean that */
    end.status = status;
    if (over) {
        int other;
        while (CALL4(SYS_wait4, -1, &other, 0, NULL) != -ECHILD) continue;
        end.microseconds = microseconds_of(&usage);
        end.most_bytes = (uint64_t)usage.ru_maxrss << 10;
    }
    CALL6(SYS_sendto, gate, &end, sizeof end, MSG_NOSIGNAL, 0, 0);
    leave(0);
}
