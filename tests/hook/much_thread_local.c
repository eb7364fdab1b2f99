/* Makes thread-local storage of the program that preloads this large: it is taken out of each thread's stack. */
enum { BYTES = 600 * 1024 };

static _Thread_local volatile char storage[BYTES];

char much_thread_local(unsigned at);

char much_thread_local(unsigned at)
{
    return storage[at % BYTES];
}
