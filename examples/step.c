/* An exported step in C: one event per line of standard input, one answer per line of standard output.

   lapse export model --step -o step.onnx
   cc step.c -o step -I$ONNXRUNTIME/include -L$ONNXRUNTIME/lib -lonnxruntime
   printf '0 81.5\n2.5 nan\n' | ./step step.onnx      # the time since the event before, then its values */

#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, VALUES = 0, TIMESPAN = 1, STATES = 2 }; /* where the inputs of a step are; answers come first */

static const OrtApi *ort;

static void check(OrtStatus *status) {
    if (status) {
        fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
        exit(1);
    }
}

/* The shape of an input or output for a batch of one sequence; returns the number of axes. */
static size_t shape_of(OrtTypeInfo *type, int64_t shape[2]) {
    const OrtTensorTypeAndShapeInfo *info;
    size_t axes;
    check(ort->CastTypeInfoToTensorInfo(type, &info));
    check(ort->GetDimensionsCount(info, &axes));
    check(ort->GetDimensions(info, shape, axes));
    ort->ReleaseTypeInfo(type);
    shape[0] = 1;
    if (axes == 1) shape[1] = 1;
    return axes;
}

int main(int argc, char **argv) {
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtSession *session;
    OrtMemoryInfo *memory;
    OrtAllocator *allocator;
    OrtTypeInfo *type;
    char *inputs[MOST], *outputs[MOST];
    OrtValue *given[MOST], *found[MOST] = {0};
    float *numbers[MOST], *answer;
    int64_t shape[2], sizes[MOST];
    size_t count, results, axes;

    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "step", &env));
    check(ort->CreateSessionOptions(&options));
    check(ort->CreateSession(env, argc > 1 ? argv[1] : "step.onnx", options, &session));
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    check(ort->GetAllocatorWithDefaultOptions(&allocator));
    check(ort->SessionGetInputCount(session, &count));
    check(ort->SessionGetOutputCount(session, &results));
    if (count > MOST || count != results + 1) { /* values and time span in, answer out, and the states both ways */
        fprintf(stderr, "expected a step with at most %d inputs and without static features\n", MOST);
        return 1;
    }
    for (size_t i = 0; i < count; i++) { /* inputs are buffers of zeros, with which a sequence begins */
        check(ort->SessionGetInputName(session, i, allocator, &inputs[i]));
        check(ort->SessionGetInputTypeInfo(session, i, &type));
        axes = shape_of(type, shape);
        sizes[i] = shape[1];
        numbers[i] = calloc(shape[1], sizeof(float));
        check(ort->CreateTensorWithDataAsOrtValue(memory, numbers[i], shape[1] * sizeof(float), shape, axes,
                                                  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &given[i]));
    }
    for (size_t i = 0; i < results; i++) check(ort->SessionGetOutputName(session, i, allocator, &outputs[i]));
    check(ort->SessionGetOutputTypeInfo(session, 0, &type));
    shape_of(type, shape); /* of the answer */

    while (scanf("%f", numbers[TIMESPAN]) == 1) {
        for (int64_t k = 0; k < sizes[VALUES]; k++)
            if (scanf("%f", &numbers[VALUES][k]) != 1) return 1;
        check(ort->Run(session, NULL, (const char *const *)inputs, (const OrtValue *const *)given, count,
                       (const char *const *)outputs, results, found));
        for (size_t i = 0; i < results; i++) {
            check(ort->GetTensorMutableData(found[i], (void **)&answer));
            if (i > 0) memcpy(numbers[STATES + i - 1], answer, sizes[STATES + i - 1] * sizeof(float));
            for (int64_t k = 0; i == 0 && k < shape[1]; k++) printf(k + 1 < shape[1] ? "%g " : "%g\n", answer[k]);
            ort->ReleaseValue(found[i]);
            found[i] = NULL;
        }
    }
    return 0; /* the system takes back what is left */
}
