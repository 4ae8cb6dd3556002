// Runs calls of the compiled library in an emulator, for tests/emulated.py: memory comes in, the same memory goes back.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// Places are counted in bytes from the beginning of the memory. A call takes the words that lie at the places `arguments`, and
// what it returns is put at the place `result`. An address is a word at `where` that is to point to the place `what`.
struct Head {
  int64_t bytes, addresses, calls;
};
struct Address {
  int64_t where, what;
};
struct Call {
  char name[40];
  int64_t result, arguments[11];
};

// All arguments are integers or addresses, so every function of the library can be called as if it took eleven words: those
// that it does not have are left over in registers and on the stack.
using Function = int64_t (*)(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t);

template <class T>
std::vector<T> receive(int64_t count) {
  std::vector<T> found(static_cast<size_t>(count));
  if (std::fread(found.data(), sizeof(T), found.size(), stdin) != found.size()) std::exit(2);
  return found;
}

int main(int, char** arguments) {
  void* library = dlopen(arguments[1], RTLD_NOW);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  Head head;
  while (std::fread(&head, sizeof head, 1, stdin)) {
    const std::vector<char> received = receive<char>(head.bytes);
    char* memory = static_cast<char*>(std::aligned_alloc(64, received.size()));  // whose size is a multiple of 64
    std::copy(received.begin(), received.end(), memory);
    const auto word = [memory](int64_t place) -> int64_t& { return *reinterpret_cast<int64_t*>(memory + place); };
    for (const Address& a : receive<Address>(head.addresses)) word(a.where) = reinterpret_cast<int64_t>(memory + a.what);
    for (const Call& call : receive<Call>(head.calls)) {
      const auto f = reinterpret_cast<Function>(dlsym(library, call.name));
      if (!f) return std::fprintf(stderr, "%s\n", dlerror()), 1;
      const int64_t* a = call.arguments;
      word(call.result) = f(word(a[0]), word(a[1]), word(a[2]), word(a[3]), word(a[4]), word(a[5]), word(a[6]), word(a[7]),
                            word(a[8]), word(a[9]), word(a[10]));
    }
    std::fwrite(memory, 1, received.size(), stdout);
    std::fflush(stdout);
    std::free(memory);
  }
}
