"""Every check: what it is called, why the bug hurts and how to mend it, in English and Chinese.

A table, not code: `CATALOGUE["attention.scale"].why[0]` is English, `[1]` is Chinese. The numbers
are those of the lab (`allformer audit --teach`); a link leads to where the bug was met in public.
"""

from __future__ import annotations

from dataclasses import dataclass

Pair = tuple[str, str]
_DOCS = "docs/audit.md"


@dataclass(frozen=True)
class Entry:
    """One kind of bug."""

    title: Pair
    why: Pair
    mend: Pair
    link: str = _DOCS
    severity: str = "error"


def _gh(path: str, number: int, kind: str = "issues") -> str:
    return f"https://github.com/{path}/{kind}/{number}"


CATALOGUE: dict[str, Entry] = {
    # --- who may look at whom ---
    "mask.future_leak": Entry(
        ("a position sees the future", "位置看到了未来"),
        ("The loss falls towards 0 because the answer is an input; generation is then garbage.",
         "答案就在输入里，损失会趋近 0，但生成时全是乱码。"),
        ("Mask scores[t, j] for every j > t before the softmax: torch.tril, or is_causal=True.",
         "在 softmax 之前遮住所有 j > t 的分数：torch.tril，或 is_causal=True。"),
        _gh("huggingface/transformers", 48745)),
    "mask.off_by_one": Entry(
        ("the causal mask is off by one", "因果掩码偏移了一位"),
        ("Seeing one token ahead is seeing the answer; not seeing oneself wastes the newest token.",
         "多看一个词元就等于看到答案；看不到自己则丢掉最新的词元。"),
        ("Keep j <= t: torch.tril(ones) (diagonal=0), or block torch.triu(ones, diagonal=1).",
         "保留 j <= t：torch.tril(ones)（diagonal=0），或遮住 torch.triu(ones, diagonal=1)。"),
        _gh("huggingface/transformers", 48745)),
    "mask.causal": Entry(
        ("an encoder hides later tokens", "编码器看不到后面的词元"),
        ("Half of the sentence is never read: the first token knows nothing of the others.",
         "句子有一半没有被读到：第一个词元对其他词元一无所知。"),
        ("Give an encoder's attention the padding mask alone: no tril, is_causal=False.",
         "编码器的注意力只用填充掩码：不要 tril，is_causal=False。")),
    "mask.inverted": Entry(
        ("the mask is inverted", "掩码取反了"),
        ("What should be seen is hidden and the other way round: the prompt is ignored.",
         "该看的被遮住，该遮的反而能看到：提示词被忽略。"),
        ("SDPA: True = may look; nn.MultiheadAttention: True = blocked. Use allformer.auditor.mask(m, like=...) to convert.",  # noqa: E501
         "SDPA 中 True = 可见；nn.MultiheadAttention 中 True = 遮住。可用 allformer.auditor.mask(m, like=...) 转换。"),  # noqa: E501
        _gh("rasbt/LLMs-from-scratch", 1061)),
    "mask.finite": Entry(
        ("a finite mask value leaks when scores grow", "有限的掩码值会在分数变大时泄漏"),
        ("Training makes scores larger; once they pass the mask value, hidden positions are seen.",
         "训练会让分数变大；一旦超过掩码值，被遮的位置又能被看到。"),
        ("Fill with float('-inf') or torch.finfo(scores.dtype).min, never add a small number.",
         "用 float('-inf') 或 torch.finfo(scores.dtype).min 填充，不要加一个不大的数。"),
        _gh("karpathy/minGPT", 75)),
    "mask.after_softmax": Entry(
        ("the mask acts after the softmax", "掩码作用在 softmax 之后"),
        ("The rows of the weights no longer sum to 1, and hidden scores still set the scale.",
         "注意力权重每行之和不再为 1，被遮的分数仍然影响归一化。"),
        ("Mask the scores, then take the softmax.", "先遮分数，再做 softmax。")),
    "mask.blind_rows": Entry(
        ("rows that may see nothing become NaN", "什么都看不到的行变成 NaN"),
        ("softmax over only -inf is NaN, and one NaN spreads to every weight in the next backward.",
         "对全是 -inf 的一行做 softmax 得到 NaN，反向传播时一个 NaN 会传染所有权重。"),
        ("Fill with torch.finfo(dtype).min, or let each blind row see itself, or use SDPA.",
         "用 torch.finfo(dtype).min 填充，或让这样的行至少看到自己，或改用 SDPA。"),
        _gh("pytorch/pytorch", 103749)),
    "mask.fp16": Entry(
        ("the mask value does not fit half precision", "掩码值超出半精度范围"),
        ("fp16 ends at 65504: -1e9 raises an error or becomes -inf, and mixed precision breaks.",
         "fp16 最大只有 65504：-1e9 会报错或变成 -inf，混合精度训练因此失败。"),
        ("Use torch.finfo(scores.dtype).min or float('-inf').",
         "用 torch.finfo(scores.dtype).min 或 float('-inf')。"),
        _gh("NVIDIA/apex", 1052), "warning"),
    # --- inside attention ---
    "attention.scale": Entry(
        ("the scores are scaled wrongly", "注意力分数的缩放不对"),
        ("Without 1/√d_k the softmax saturates and gradients vanish; scaled too much, it is flat.",
         "缺少 1/√d_k 时 softmax 饱和、梯度消失；缩放过度则权重趋于均匀。"),
        ("scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim), once, with the size of one head.",
         "scores = q @ k.transpose(-2, -1) / math.sqrt(head_dim)，只做一次，用单个头的维度。"),
        _gh("lucidrains/vit-pytorch", 65)),
    "attention.softmax_axis": Entry(
        ("the softmax runs over the wrong axis", "softmax 的维度不对"),
        ("The weights with which a query mixes values do not sum to 1; it trains anyway, worse.",
         "每个查询混合各个值的权重之和不为 1；照样能训练，只是更差。"),
        ("softmax(dim=-1) on scores of shape (batch, heads, queries, keys).",
         "对形状为 (batch, heads, queries, keys) 的分数做 softmax(dim=-1)。"),
        _gh("labmlai/annotated_deep_learning_paper_implementations", 146)),
    "attention.shared_projections": Entry(
        ("queries, keys or values share one projection", "Q、K、V 共用了同一个投影"),
        ("With W_q = W_k the scores are symmetric; a third of the parameters does not exist.",
         "W_q = W_k 时分数是对称的；应有的参数实际并不存在。"),
        ("Make a Linear for each: [nn.Linear(d, d) for _ in range(4)], not [nn.Linear(d, d)] * 4.",
         "分别建立 Linear：[nn.Linear(d, d) for _ in range(4)]，而不是 [nn.Linear(d, d)] * 4。")),
    "attention.output_projection": Entry(
        ("the heads are not mixed by an output projection", "多头输出没有经过 W_O"),
        ("Without W_O each head writes to its own slice of the residual stream only.",
         "没有 W_O，每个头只能写入残差流中自己的那一段。"),
        ("Apply self.out_proj to the merged heads and return that.",
         "把合并后的各头送入 self.out_proj，并返回其结果。")),
    "attention.grouped_order": Entry(
        ("grouped keys are repeated in the wrong order", "分组的键值头重复顺序不对"),
        ("Query heads read a foreign group; any published checkpoint gives garbage.",
         "查询头读到了别的组；加载任何公开权重都会输出乱码。"),
        ("k.repeat_interleave(heads // kv_heads, dim=1), not k.repeat(1, heads // kv_heads, 1, 1).",
         "用 k.repeat_interleave(heads // kv_heads, dim=1)，不要用 k.repeat(1, heads // kv_heads, 1, 1)。")),  # noqa: E501
    "heads.split": Entry(
        ("heads are split by view: positions are mixed", "用 view 拆分多头：位置被混在一起"),
        ("(B, T, C).view(B, H, T, D) cuts the sequence, not the features: a head sees other tokens.",  # noqa: E501
         "(B, T, C).view(B, H, T, D) 切的是序列而不是特征：每个头拿到的是别的词元。"),
        ("x.view(B, T, H, D).transpose(1, 2).", "x.view(B, T, H, D).transpose(1, 2)。"),
        _gh("reczoo/FuxiCTR", 30)),
    "heads.merge": Entry(
        ("heads are merged without the transpose", "合并多头时漏了转置"),
        ("(B, H, T, D).reshape(B, T, C) puts pieces of several positions into one.",
         "(B, H, T, D).reshape(B, T, C) 会把多个位置的片段拼到一个位置。"),
        ("y.transpose(1, 2).reshape(B, T, H * D).", "y.transpose(1, 2).reshape(B, T, H * D)。"),
        _gh("reczoo/FuxiCTR", 30)),
    "patches.mixed": Entry(
        ("patches of an image are mixed", "图像的各个小块被混在一起"),
        ("(B, C, H, W) reshaped to tokens cuts channels and lines apart: no token is a patch.",
         "把 (B, C, H, W) 直接 reshape 成词元会切断通道和行：没有一个词元是完整的小块。"),
        ("x.flatten(2).transpose(1, 2) after a convolution; rearrange(x, 'b c (h p) (w q) -> b (h w) (p q c)') before a Linear.",  # noqa: E501
         "卷积之后用 x.flatten(2).transpose(1, 2)；Linear 之前用 rearrange(x, 'b c (h p) (w q) -> b (h w) (p q c)')。")),  # noqa: E501
    # --- layers ---
    "layers.identical": Entry(
        ("layers start with identical weights", "各层初始权重完全相同"),
        ("Layers copied with deepcopy begin as one layer; nothing but their place tells them apart.",  # noqa: E501
         "用 deepcopy 复制的层初始完全一样，只能靠所处的深度慢慢分化。"),
        ("Initialise each layer anew after copying (nn.TransformerEncoder itself does not).",
         "复制之后逐层重新初始化（nn.TransformerEncoder 自己并没有这样做）。"),
        _gh("pytorch/pytorch", 86274), "warning"),
    "layers.reused": Entry(
        ("one layer object stands several times in a list", "同一个层对象在列表中出现多次"),
        ("[layer] * n is one layer n times: the model has far fewer parameters than it seems.",
         "[layer] * n 是同一层用 n 次：实际参数远比看起来少。"),
        ("[Layer() for _ in range(n)]; if sharing is meant, say profile='shared-layers'.",
         "[Layer() for _ in range(n)]；如果确实要共享，请写 profile='shared-layers'。"),
        _gh("espnet/espnet", 1278)),
    # --- positions ---
    "positions.missing": Entry(
        ("no positional information", "没有位置信息"),
        ("Attention is blind to order: a sentence is a bag of words.",
         "注意力本身不区分顺序：句子成了一袋词。"),
        ("Add positions to the embedding, rotate queries and keys, or add a bias to the scores; if none are wanted, say profile='no-positions'.",  # noqa: E501
         "给嵌入加位置、旋转查询和键，或给分数加偏置；若有意不用，请写 profile='no-positions'。")),
    "positions.batch_axis": Entry(
        ("positions are added along the batch axis", "位置编码加在了批次维上"),
        ("All tokens of a row get one position, and rows differ by their place in the batch.",
         "同一行的词元位置都一样，而不同行却因在批次中的位置而不同。"),
        ("x + pe[: x.size(1)] for batch-first x, pe[: x.size(0)] only for (T, B, C).",
         "batch-first 时用 x + pe[: x.size(1)]；只有 (T, B, C) 才用 pe[: x.size(0)]。")),
    "positions.frequencies": Entry(
        ("the sinusoidal frequencies are wrong", "正弦位置编码的频率不对"),
        ("Distances are no longer a rotation, or far positions look alike: a quiet loss of quality.",  # noqa: E501
         "相对距离不再对应旋转，或远处的位置难以区分：质量悄悄变差。"),
        ("angle = pos / 10000 ** (2i / d) for i < d/2, the same for the sine and cosine of a pair; arange(0, d, 2) already is 2i.",  # noqa: E501
         "angle = pos / 10000 ** (2i / d)，i < d/2，同一对 sin 与 cos 用同一频率；arange(0, d, 2) 已经是 2i。"),  # noqa: E501
        _gh("shenweichen/DeepCTR", 379)),
    "positions.rotary": Entry(
        ("rotary scores do not depend on the distance only", "旋转位置编码的分数不只取决于距离"),
        ("Rotary works because q_i·k_j depends on i − j; a mixed layout or a missed k breaks that.",
         "旋转编码成立的前提是 q_i·k_j 只取决于 i − j；布局混用或漏转 k 都会破坏它。"),
        ("Rotate q and k alike, v not at all, and use one layout for the pairs: halves with cat(f, f), or neighbours with repeat_interleave(f, 2).",  # noqa: E501
         "q 与 k 用同样方式旋转，v 不旋转，且布局一致：前后两半配 cat(f, f)，相邻成对配 repeat_interleave(f, 2)。"),  # noqa: E501
        _gh("huggingface/transformers", 25199)),
    "positions.bias": Entry(
        ("what distances add to the scores is wrong", "距离加到分数上的偏置不对"),
        ("ALiBi favours what is near, each head with its own reach; a reversed sign favours what is far, and a one-sided table cannot tell what is later apart.",  # noqa: E501
         "ALiBi 偏向近处，每个头的远近不同；符号反了就偏向远处，单侧的表分不清后面的词元。"),
        ("Add −m_h·|i − j| with m_h = 2^(−8h/H); in an encoder use buckets for both sides (bidirectional=True).",  # noqa: E501
         "加上 −m_h·|i − j|，m_h = 2^(−8h/H)；编码器中使用双侧的分桶（bidirectional=True）。")),
    "positions.buffer": Entry(
        ("a table is a plain tensor, not a buffer", "位置表是普通张量而不是 buffer"),
        (".to(device), .half() and state_dict pass it by: a crash on the GPU, or mixed dtypes.",
         ".to(device)、.half() 和 state_dict 都不会带上它：到 GPU 上报错，或精度混杂。"),
        ("self.register_buffer('pe', pe, persistent=False).",
         "self.register_buffer('pe', pe, persistent=False)。")),
    "positions.left_padding": Entry(
        ("left padding shifts the positions", "左填充使位置错位"),
        ("A padded prompt is read at other positions than alone: short prompts get worse, silently.",  # noqa: E501
         "填充后的提示词所在位置与单独输入时不同：短提示词悄悄变差。"),
        ("position_ids = (mask.cumsum(-1) - 1).clamp(min=0), or take position_ids as an argument.",
         "position_ids = (mask.cumsum(-1) - 1).clamp(min=0)，或接受 position_ids 参数。"),
        _gh("TransformerLensOrg/TransformerLens", 1609)),
    # --- padding ---
    "padding.ignored": Entry(
        ("padding is not masked", "填充没有被遮住"),
        ("The output of a sentence depends on how long its batch mates are.",
         "一句话的输出取决于同批其他句子的长度。"),
        ("Mask the keys: scores.masked_fill(~keep[:, None, None, :], -inf).",
         "遮住键：scores.masked_fill(~keep[:, None, None, :], -inf)。")),
    "padding.query_axis": Entry(
        ("the padding mask is on the query axis", "填充掩码用在了查询维上"),
        ("Rows of padding are masked, but everybody still looks at the padding.",
         "被遮的是填充位置作为查询的行，其他位置仍然能看到填充。"),
        ("keep[:, None, None, :] (keys), not keep[:, None, :, None] (queries).",
         "用 keep[:, None, None, :]（键），而不是 keep[:, None, :, None]（查询）。")),
    "cross.mask": Entry(
        ("the mask of the cross-attention is wrong", "交叉注意力的掩码不对"),
        ("The translation depends on how much padding the source happened to get, or (a causal mask over the source) a word sees only the source's beginning.",  # noqa: E501
         "译文取决于源句恰好被填充了多少；或者（对源端用了因果掩码）一个词只看到源句的开头。"),
        ("Hand the source's padding mask to the cross-attention (memory_key_padding_mask), no other mask.",  # noqa: E501
         "给交叉注意力传入源端的填充掩码（memory_key_padding_mask），不要传别的掩码。")),
    "cross.unread": Entry(
        ("the decoder does not read the source", "解码器没有读取源句"),
        ("Output that does not depend on the source is a language model, not a translation.",
         "输出与源句无关，那只是语言模型，不是翻译。"),
        ("Keys and values of the cross-attention come from the encoder; check its mask's axes.",
         "交叉注意力的键和值来自编码器；检查掩码的维度。")),
    "batch.mixing": Entry(
        ("batch rows influence each other", "批次中的各行互相影响"),
        ("Results depend on the batch: axes are swapped (batch_first), or a mask is broadcast wrongly.",  # noqa: E501
         "结果取决于同批的其他样本：维度弄反（batch_first），或掩码广播错误。"),
        ("Check batch_first, every reshape and view, and the mask's shape (B, 1, 1, S).",
         "检查 batch_first、所有 reshape 与 view，以及掩码形状 (B, 1, 1, S)。")),
    # --- blocks ---
    "residual.missing": Entry(
        ("a residual connection is missing", "缺少残差连接"),
        ("With the sub-layers silent the input is lost: gradients have no straight way down.",
         "子层输出为零时输入就丢失了：梯度没有直通的路。"),
        ("x = x + f(norm(x)) (pre-norm) or x = norm(x + f(x)) (post-norm), for every sub-layer.",
         "每个子层都写 x = x + f(norm(x))（pre-norm）或 x = norm(x + f(x))（post-norm）。")),
    "residual.after_norm": Entry(
        ("the residual is taken after the norm", "残差取自归一化之后"),
        ("x = norm(x); x = x + f(x) overwrites the stream, x = x + norm(f(x)) never norms it: neither is pre- or post-norm, nor is a block with one of each.",  # noqa: E501
         "x = norm(x); x = x + f(x) 会覆盖残差流，x = x + norm(f(x)) 则从不归一化残差流：既不是 pre-norm 也不是 post-norm；一个块里两种混用也不是。"),  # noqa: E501
        ("Pre-norm: x = x + f(norm(x)); post-norm: x = norm(x + f(x)).",
         "pre-norm：x = x + f(norm(x))；post-norm：x = norm(x + f(x))。")),
    "norm.axis": Entry(
        ("the norm runs over the wrong axis", "归一化的维度不对"),
        ("A position's norm must use its own features alone, or positions and rows leak.",
         "每个位置只能用自己的特征做归一化，否则位置之间、样本之间会互相泄漏。"),
        ("nn.LayerNorm(d_model), or mean and variance with dim=-1.",
         "nn.LayerNorm(d_model)，或在 dim=-1 上求均值和方差。")),
    "norm.variance": Entry(
        ("the norm is not the formula", "归一化与公式不符"),
        ("(x − mean)/√(var + ε) has the biased variance; with another one no checkpoint fits.",
         "(x − mean)/√(var + ε) 用有偏方差；换一种算法就无法与任何权重对上。"),
        ("x.var(-1, unbiased=False), the mean subtracted, ε under the root.",
         "x.var(-1, unbiased=False)，减去均值，ε 放在根号里。"),
        _DOCS, "warning"),
    "norm.epsilon": Entry(
        ("the norm's epsilon is wrong", "归一化的 ε 不对"),
        ("Too large it shrinks everything, without it a constant input gives NaN.",
         "过大会缩小所有输出；没有则常数输入得到 NaN。"),
        ("eps=1e-5 (1e-6 and 1e-12 are met too), inside the square root.",
         "eps=1e-5（也常见 1e-6、1e-12），放在根号里。"),
        _DOCS, "warning"),
    "dropout.eval": Entry(
        ("dropout is active in eval", "eval 模式下仍有 dropout"),
        ("Two evaluations of one input differ; scores are noisy and too low.",
         "同一输入两次评估结果不同；分数有噪声且偏低。"),
        ("F.dropout(x, p, training=self.training); SDPA: dropout_p=p if self.training else 0.0.",
         "F.dropout(x, p, training=self.training)；SDPA：dropout_p=p if self.training else 0.0。"),
        _gh("karpathy/nanoGPT", 240, "pull")),
    "dropout.train": Entry(
        ("dropout is declared but never acts", "声明了 dropout 却从未生效"),
        ("The regularisation that the config promises does not happen.",
         "配置里写的正则化并没有发生。"),
        ("Call the nn.Dropout in forward, or pass training=self.training.",
         "在 forward 中调用 nn.Dropout，或传入 training=self.training。"),
        _DOCS, "warning"),
    # --- loss ---
    "loss.shift": Entry(
        ("labels are not shifted by one", "标签没有正好移动一位"),
        ("Unshifted, the model learns to copy; shifted twice, it predicts the token after the next.",  # noqa: E501
         "不移位，模型学会照抄；移了两次，模型预测的是下下个词元。"),
        ("loss(logits[:, :-1], labels[:, 1:]) once: in the model or in the data, not in both.",
         "loss(logits[:, :-1], labels[:, 1:]) 只做一次：在模型里或在数据里，不能两处都做。"),
        _gh("huggingface/transformers", 47394)),
    "loss.padding": Entry(
        ("padding counts in the loss", "填充被计入损失"),
        ("The loss looks too low and gradients are spent on predicting padding.",
         "损失显得过低，梯度浪费在预测填充上。"),
        ("cross_entropy(..., ignore_index=pad_id), or labels of −100 at padding.",
         "cross_entropy(..., ignore_index=pad_id)，或把填充处的标签设为 −100。")),
    "loss.eos": Entry(
        ("the end of a sentence does not count in the loss", "句尾 EOS 没有计入损失"),
        ("A model that is never told where to stop does not stop.",
         "从未学过在哪里结束的模型就不会停下来。"),
        ("Mask by position (attention_mask), not by id, where pad = eos, or use a pad of its own; keep the last label when shifting.",  # noqa: E501
         "pad = eos 时按位置（attention_mask）而不是按编号屏蔽，或单独设一个 pad；移位时保留最后一个标签。"),  # noqa: E501
        _gh("huggingface/trl", 6357, "pull")),
    "loss.softmax": Entry(
        ("probabilities where logits belong", "该是 logits 的地方成了概率"),
        ("cross_entropy takes its own softmax: on probabilities the loss has a floor near ln V − 1.",  # noqa: E501
         "cross_entropy 自带 softmax：输入概率时，损失最低只能到 ln V − 1 附近。"),
        ("Return the logits; take the softmax only to show or to sample.",
         "返回 logits；只在展示或采样时做 softmax。")),
    "loss.accumulation": Entry(
        ("accumulated gradients are not those of the full batch", "累积的梯度不等于整批的梯度"),
        ("A mean of means weighs short micro-batches too much; without division, loss × k.",
         "对均值再取均值会高估短的小批次；不除则损失放大 k 倍。"),
        ("Sum the losses of all tokens and divide once by the number of targets of the whole batch.",  # noqa: E501
         "把所有词元的损失相加，再除以整批的目标总数，只除一次。"),
        _gh("huggingface/transformers", 37766)),
    # --- state, weights ---
    "cache.mismatch": Entry(
        ("cached and uncached outputs differ", "使用缓存与不用缓存结果不同"),
        ("Generation drifts away from what the model would say if it read everything again.",
         "生成结果会逐渐偏离完整重算时的结果。"),
        ("Rotate before caching, count positions from the cache's length, keep the mask's columns.",
         "先旋转再缓存；位置从缓存长度数起；掩码要包含已缓存的列。"),
        _gh("Lightning-AI/litgpt", 2165)),
    "weights.unused": Entry(
        ("parameters are never used", "有参数从未被使用"),
        ("They take memory and appear in the count, but nothing flows through them.",
         "它们占用内存、计入参数量，却没有任何数据流过。"),
        ("Call the layer in forward, or delete it.", "在 forward 中调用该层，或删掉它。")),
    "weights.save_load": Entry(
        ("saving and loading changes the outputs", "保存再加载后输出改变"),
        ("A tie that is lost or a tensor outside the state_dict: fluent before, garbage after.",
         "权重共享丢失，或有张量不在 state_dict 里：保存前流畅，加载后乱码。"),
        ("Register every tensor as a parameter or buffer; tie weights in __init__, not by copying.",
         "所有张量注册为参数或 buffer；在 __init__ 中共享权重，不要复制。"),
        _gh("vllm-project/vllm", 53020, "pull")),
    "packing.leak": Entry(
        ("packed documents see each other", "打包在一起的文档互相可见"),
        ("Documents in one row influence each other: a quiet drop in quality.",
         "同一行里的文档互相影响：质量悄悄下降。"),
        ("A block-diagonal mask from the document ids, positions from 0 for each document.",
         "按文档编号构造块对角掩码，每个文档的位置从 0 开始。"),
        _gh("huggingface/trl", 1230)),
    "search.wrong": Entry(
        ("the search does not find what it should", "搜索没有找到应有的结果"),
        ("Beams that stop at the first end or run past it give short or endless outputs.",
         "遇到第一个结束符就停，或越过结束符继续，都会使输出过短或停不下来。"),
        ("Keep finished beams aside and stop when no live beam can beat the best of them.",
         "把已结束的候选单独保存，直到没有未结束的候选能超过其中最好的为止。"),
        _gh("joeynmt/joeynmt", 148)),
    # --- training ---
    "training.initial_loss": Entry(
        ("the first loss is far from ln V", "初始损失远离 ln V"),
        ("Fresh weights should guess evenly; confident nonsense costs the first epochs.",
         "初始权重应当均匀猜测；自信的胡说会浪费最初的训练。"),
        ("Initialise embeddings that are tied to the output with std 0.02 or 1/√d.",
         "与输出共享的嵌入用 0.02 或 1/√d 的标准差初始化。"),
        _DOCS, "warning"),
    "training.gradients": Entry(
        ("gradients are dead or explode at the start", "初始梯度消失或爆炸"),
        ("A layer without gradient does not learn; an exploding one destroys the rest.",
         "没有梯度的层学不到东西；爆炸的梯度会毁掉其余部分。"),
        ("Look at the initial scale of that layer, at saturated activations, at missing norms, and at two maps in a row that both start at 0: one of them must not.",  # noqa: E501
         "检查该层的初始尺度、饱和的激活函数、是否缺少归一化，以及相邻两个映射是否都从 0 开始：至少一个不能为 0。")),  # noqa: E501
    "training.nan": Entry(
        ("training becomes NaN", "训练出现 NaN"),
        ("A few steps at a usual learning rate must stay finite.",
         "用常见的学习率训练几步，数值应保持有限。"),
        ("Find the operator that the evidence names: log or sqrt of 0, −inf rows, missing norms.",
         "查看证据中指出的算子：对 0 取对数或开方、全 −inf 的行、缺少归一化。")),
    # --- a mask or a call by itself ---
    "mask.ambiguous": Entry(
        ("a mask that can be read in two ways", "掩码有两种解读"),
        ("A float mask of 0 and 1 is added to the scores, not taken as keep and block.",
         "值为 0 和 1 的浮点掩码会被加到分数上，而不是当作可见与遮住。"),
        ("Make it boolean, or additive with 0 and −inf.",
         "改成布尔型，或用 0 和 −inf 的加性掩码。"),
        _gh("pytorch/pytorch", 21518)),
}  # fmt: skip
