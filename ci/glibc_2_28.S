# Binds what is linked to the interfaces of glibc 2.28, so that the wheel runs wherever glibc is at least that old, on whatever it is
# built. `ci/wheel` links it with `--wrap` for each name: a reference to `pthread_create` is one to `__wrap_pthread_create` here,
# which is the older version of the same function. Newer versions of glibc have all of these. Each is in a section of its own, so
# that what is not referred to is not linked.
#
# A name that may be missing (`weak`) has no definition here, and is missing.

.macro older name, version=GLIBC_2.2.5
    .section .text.\name, "ax", @progbits
    .symver older_\name, \name@\version
    .globl __wrap_\name
    .type __wrap_\name, @function
__wrap_\name:
    jmp older_\name@PLT
    .size __wrap_\name, . - __wrap_\name
.endm

    # Of libpthread and libdl until 2.34.
    older pthread_create
    older pthread_detach
    older pthread_join
    older pthread_key_create
    older pthread_key_delete
    older pthread_setspecific
    older pthread_attr_getguardsize
    older pthread_attr_getstack
    older pthread_attr_setstacksize
    older pthread_getattr_np
    older pthread_setname_np, GLIBC_2.12
    older dlopen
    older dlsym
    older dlclose
    older dlerror

    # They report errors otherwise since 2.29.
    older exp
    older log
    older log2
    older pow

# Until 2.33 `stat(path, status)` was `__xstat(1, path, status)`.
.macro status name, older, version=GLIBC_2.2.5
    .section .text.\name, "ax", @progbits
    .symver older_\older, \older@\version
    .globl __wrap_\name
    .type __wrap_\name, @function
__wrap_\name:
    mov %rcx, %r8
    mov %rdx, %rcx
    mov %rsi, %rdx
    mov %rdi, %rsi
    mov $1, %edi
    jmp older_\older@PLT
    .size __wrap_\name, . - __wrap_\name
.endm

    status stat64, __xstat64
    status lstat64, __lxstat64
    status fstat64, __fxstat64
    status fstatat64, __fxstatat64, GLIBC_2.4

# Until 2.34 a program called its own constructors, and said where the function is that does.
    .section .text.start, "ax", @progbits
    .symver older_start, __libc_start_main@GLIBC_2.2.5
    .globl __wrap___libc_start_main
    .type __wrap___libc_start_main, @function
__wrap___libc_start_main:
    lea constructors(%rip), %rcx
    xor %r8d, %r8d
    jmp older_start@PLT
    .size __wrap___libc_start_main, . - __wrap___libc_start_main

    .type constructors, @function
constructors:
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %edi, %r12d
    mov %rsi, %r13
    mov %rdx, %r14
    lea __init_array_start(%rip), %rbx
    lea __init_array_end(%rip), %r15
1:  cmp %r15, %rbx
    jae 2f
    mov %r12d, %edi
    mov %r13, %rsi
    mov %r14, %rdx
    call *(%rbx)
    add $8, %rbx
    jmp 1b
2:  pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    ret
    .size constructors, . - constructors

    # A shared object has none.
    .weak __init_array_start
    .weak __init_array_end
    .hidden __init_array_start
    .hidden __init_array_end
    .section .note.GNU-stack, "", @progbits
