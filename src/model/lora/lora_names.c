/* Translates names of LoRA tensors. See lora_names.h.
 *
 * A name is a prefix, a layer and an ending. Layers inside blocks begin with the block's number, and their
 * rest is in a table with both namings. kohya writes underscores instead of dots, so that a layer cannot be
 * divided at its dots: the whole rest is compared with the table's names, written the same way. */
#include "model/lora/lora_names.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct LayerName {
    const char *original, *diffusers;
} LayerName;

static const LayerName IN_BLOCK[] = {
    {"self_attn.q", "attn1.to_q"},
    {"self_attn.k", "attn1.to_k"},
    {"self_attn.v", "attn1.to_v"},
    {"self_attn.o", "attn1.to_out.0"},
    {"self_attn.norm_q", "attn1.norm_q"},
    {"self_attn.norm_k", "attn1.norm_k"},
    {"cross_attn.q", "attn2.to_q"},
    {"cross_attn.k", "attn2.to_k"},
    {"cross_attn.v", "attn2.to_v"},
    {"cross_attn.o", "attn2.to_out.0"},
    {"cross_attn.norm_q", "attn2.norm_q"},
    {"cross_attn.norm_k", "attn2.norm_k"},
    {"cross_attn.k_img", "attn2.add_k_proj"},
    {"cross_attn.v_img", "attn2.add_v_proj"},
    {"cross_attn.norm_k_img", "attn2.norm_added_k"},
    {"norm3", "norm2"},
    {"ffn.0", "ffn.net.0.proj"},
    {"ffn.2", "ffn.net.2"},
    {"modulation", "scale_shift_table"},
};

static const LayerName OUTSIDE_BLOCKS[] = {
    {"patch_embedding", "patch_embedding"},
    {"text_embedding.0", "condition_embedder.text_embedder.linear_1"},
    {"text_embedding.2", "condition_embedder.text_embedder.linear_2"},
    {"time_embedding.0", "condition_embedder.time_embedder.linear_1"},
    {"time_embedding.2", "condition_embedder.time_embedder.linear_2"},
    {"time_projection.1", "condition_embedder.time_proj"},
    {"img_emb.proj.0", "condition_embedder.image_embedder.norm1"},
    {"img_emb.proj.1", "condition_embedder.image_embedder.ff.net.0.proj"},
    {"img_emb.proj.3", "condition_embedder.image_embedder.ff.net.2"},
    {"img_emb.proj.4", "condition_embedder.image_embedder.norm2"},
    {"head.modulation", "scale_shift_table"},
    {"head.head", "proj_out"},
};

enum {
    IN_BLOCK_COUNT = sizeof IN_BLOCK / sizeof *IN_BLOCK,
    OUTSIDE_COUNT = sizeof OUTSIDE_BLOCKS / sizeof *OUTSIDE_BLOCKS
};

typedef struct Ending {
    const char *text;
    DsviLoraPart part;
} Ending;

static const Ending ENDINGS[] = {
    {".lora_A.weight", DSVI_LORA_A},
    {".lora_B.weight", DSVI_LORA_B},
    {".lora_A.default.weight", DSVI_LORA_A},
    {".lora_B.default.weight", DSVI_LORA_B},
    {".lora_down.weight", DSVI_LORA_A},
    {".lora_up.weight", DSVI_LORA_B},
    {".lora.down.weight", DSVI_LORA_A},
    {".lora.up.weight", DSVI_LORA_B},
    {".alpha", DSVI_LORA_ALPHA},
    {".diff", DSVI_LORA_DIFF},
    {".diff_b", DSVI_LORA_DIFF_BIAS},
};

typedef struct Prefix {
    const char *text;
    char separator; /* between the words of a layer */
} Prefix;

/* The empty prefix comes last because every name begins with it. */
static const Prefix PREFIXES[] = {
    {"model.diffusion_model.", '.'},
    {"diffusion_model.", '.'},
    {"transformer.", '.'},
    {"base_model.model.diffusion_model.", '.'},
    {"base_model.model.transformer.", '.'},
    {"base_model.model.", '.'},
    {"lora_unet__", '_'},
    {"lora_unet_", '_'},
    {"", '.'},
};

/* Returns whether `text` is `name` with `separator` in the place of each dot. */
static bool lora_same_words(const char *text, const char *name, char separator)
{
    for (; *text && *name; text++, name++)
        if (*text != (*name == '.' ? separator : *name))
            return false;
    return *text == *name;
}

/* Finds the table's row whose original or diffusers name is `text`; NULL: none. */
static const LayerName *find_layer(const LayerName *table, int count, const char *text, char separator)
{
    for (int i = 0; i < count; i++)
        if (lora_same_words(text, table[i].original, separator) ||
            lora_same_words(text, table[i].diffusers, separator))
            return &table[i];
    return NULL;
}

/* Reads "blocks.12." at the start of `text`. Returns the rest, or NULL. Numbers have at most four digits and
 * no needless zero. */
static const char *lora_parse_block(const char *text, char separator, int *block)
{
    static const char WORD[] = "blocks";
    size_t digits = 0;
    if (strncmp(text, WORD, sizeof WORD - 1) != 0 || text[sizeof WORD - 1] != separator)
        return NULL;
    text += sizeof WORD;
    for (*block = 0; digits < 4 && isdigit((unsigned char)text[digits]); digits++)
        *block = *block * 10 + (text[digits] - '0');
    if (digits == 0 || (digits > 1 && text[0] == '0') || text[digits] != separator)
        return NULL;
    return text + digits + 1;
}

static bool parse_layer(const char *text, char separator, char layer[DSVI_LORA_NAME_BYTES])
{
    int block;
    const char *rest = lora_parse_block(text, separator, &block);
    const LayerName *found = rest ? find_layer(IN_BLOCK, IN_BLOCK_COUNT, rest, separator)
                                  : find_layer(OUTSIDE_BLOCKS, OUTSIDE_COUNT, text, separator);
    if (!found)
        return false;
    if (rest)
        snprintf(layer, DSVI_LORA_NAME_BYTES, "blocks.%d.%s", block, found->diffusers);
    else
        snprintf(layer, DSVI_LORA_NAME_BYTES, "%s", found->diffusers);
    return true;
}

/* Finds the layer that the first `length` bytes of `name` stand for. */
static bool parse_prefixed(const char *name, size_t length, char layer[DSVI_LORA_NAME_BYTES])
{
    char text[DSVI_LORA_NAME_BYTES];
    size_t p = 0;
    if (length >= sizeof text)
        return false;
    memcpy(text, name, length);
    text[length] = 0;
    while (strncmp(text, PREFIXES[p].text, strlen(PREFIXES[p].text)) != 0)
        p++;
    return parse_layer(text + strlen(PREFIXES[p].text), PREFIXES[p].separator, layer);
}

/* Returns whether `name` ends with `ending`. Subtracts its length from *length. */
static bool take_ending(const char *name, const char *ending, size_t *length)
{
    size_t n = strlen(ending);
    if (*length <= n || strcmp(name + *length - n, ending) != 0)
        return false;
    *length -= n;
    return true;
}

bool dsvi_lora_name_parse(const char *name, char layer[DSVI_LORA_NAME_BYTES], DsviLoraPart *part)
{
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++) {
        size_t length = strlen(name);
        *part = ENDINGS[i].part;
        if (take_ending(name, ENDINGS[i].text, &length))
            return parse_prefixed(name, length, layer);
    }
    return false;
}

const char *dsvi_lora_name_foreign(const char *name)
{
    static const char *const WORDS[][2] = {
        {".dora_scale", "a DoRA (weights of which a LoRA changes the direction and a vector the length)"},
        {".lora_magnitude_vector",
         "a DoRA (weights of which a LoRA changes the direction and a vector the length)"},
        {".hada_", "a LoHa (products of two LoRAs, element by element)"},
        {".lokr_", "a LoKr (Kronecker products)"},
        {".oft_", "an OFT (rotations of weights)"},
        {".boft_", "a BOFT (rotations of weights)"},
        {".set_weight", "a file that replaces whole weights"},
        {"lora_te", "a LoRA of a text encoder"},
        {"transformer_2.", "a file for two experts, of which dsv reads one file each"},
    };
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        const char *at = strstr(name, WORDS[i][0]);
        if (at && (at == name || WORDS[i][0][0] == '.'))
            return WORDS[i][1];
    }
    return NULL;
}

bool dsvi_lora_name_of_param(const char *name, char layer[DSVI_LORA_NAME_BYTES], bool *bias)
{
    size_t length = strlen(name);
    *bias = take_ending(name, ".bias", &length);
    if (!*bias)
        take_ending(name, ".weight", &length); /* modulation tables have no ending */
    return parse_prefixed(name, length, layer);
}

DsvStatus dsvi_lora_name_make(DsviLoraForm form, const char *layer, DsviLoraPart part,
                              char name[DSVI_LORA_NAME_BYTES])
{
    static const char *const PREFIX[] = {"diffusion_model.", "transformer.", "lora_unet_"};
    static const char *const END[][DSVI_LORA_PARTS] = {
        {".lora_A.weight", ".lora_B.weight", ".alpha", ".diff", ".diff_b"},
        {".lora_A.weight", ".lora_B.weight", ".alpha", NULL, NULL},
        {".lora_down.weight", ".lora_up.weight", ".alpha", NULL, NULL},
    };
    int block, begin;
    const char *rest = lora_parse_block(layer, '.', &block);
    const LayerName *found = rest ? find_layer(IN_BLOCK, IN_BLOCK_COUNT, rest, '.')
                                  : find_layer(OUTSIDE_BLOCKS, OUTSIDE_COUNT, layer, '.');
    DSVI_ASSERT(found);
    if (!END[form][part])
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s has a difference of whole weights, which only --to comfy can store", layer);
    begin = snprintf(name, DSVI_LORA_NAME_BYTES, "%s", PREFIX[form]);
    if (rest)
        begin += snprintf(name + begin, (size_t)(DSVI_LORA_NAME_BYTES - begin), "blocks.%d.", block);
    snprintf(name + begin, (size_t)(DSVI_LORA_NAME_BYTES - begin), "%s",
             form == DSVI_LORA_DIFFUSERS ? found->diffusers : found->original);
    for (char *c = name; form == DSVI_LORA_KOHYA && *c; c++)
        *c = *c == '.' ? '_' : *c;
    size_t used = strlen(name);
    snprintf(name + used, DSVI_LORA_NAME_BYTES - used, "%s", END[form][part]);
    return DSV_OK;
}

DsvStatus dsvi_lora_form_find(const char *name, DsviLoraForm *form)
{
    static const char *const NAMES[] = {"comfy", "diffusers", "kohya"};
    for (int i = 0; i < 3; i++) {
        if (strcmp(name, NAMES[i]) == 0) {
            *form = (DsviLoraForm)i;
            return DSV_OK;
        }
    }
    return DSVI_FAIL(DSV_E_USAGE, "no form of LoRA files is called '%s', expected comfy, diffusers or kohya",
                     name);
}
