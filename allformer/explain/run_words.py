"""The words of the report that depend on what a run was taught; see `words`."""

from __future__ import annotations

Pair = tuple[str, str]  # English, Chinese: both are HTML

OBJECTIVE_WORDS: dict[str, Pair] = {
    # --- what was taught ---
    "page.run": ("A trained Transformer", "一个训练好的 Transformer"),
    "title.causal-lm": ("A Transformer learned to write on", "一个 Transformer 学会了续写文本"),
    "title.instruction": (
        "A Transformer learned to answer",
        "一个 Transformer 学会了回答问题",
    ),
    "title.dpo": (
        "A Transformer learned which answers people prefer",
        "一个 Transformer 学会了人们偏好的回答",
    ),
    "title.kto": (
        "A Transformer learned which answers are good",
        "一个 Transformer 学会了分辨回答的好坏",
    ),
    "title.grpo": (
        "A Transformer learned from rewards for its own answers",
        "一个 Transformer 从自己回答所得的奖励中学习",
    ),
    "title.ppo": (
        "A Transformer learned from rewards for its own answers, and what to expect of them",
        "一个 Transformer 从自己回答所得的奖励中学习，也学会了预期奖励",
    ),
    "title.reward": (
        "A Transformer learned to score answers",
        "一个 Transformer 学会了给回答打分",
    ),
    "title.masked-lm": (
        "A Transformer learned to fill in hidden words",
        "一个 Transformer 学会了填补被遮住的词",
    ),
    "title.span-corruption": (
        "A Transformer learned to put back what was cut out",
        "一个 Transformer 学会了补回被挖去的片段",
    ),
    "title.denoising": (
        "A Transformer learned to restore spoilt texts",
        "一个 Transformer 学会了还原被打乱的文本",
    ),
    "title.duplication": (
        "A Transformer learned to say a sequence twice",
        "一个 Transformer 学会了把序列再说一遍",
    ),
    "title.classification": (
        "A Transformer learned to tell texts apart",
        "一个 Transformer 学会了给文本分类",
    ),
    "title.tagging": ("A Transformer learned to tag words", "一个 Transformer 学会了给词打标签"),
    "title.answering": (
        "A Transformer learned to find answers in texts",
        "一个 Transformer 学会了在文中找答案",
    ),
    "title.choice": (
        "A Transformer learned to choose among texts",
        "一个 Transformer 学会了在几段文本中做选择",
    ),
    "title.vectors": (
        "A Transformer learned which texts mean the same",
        "一个 Transformer 学会了判断哪些文本意思相近",
    ),
    "lead.encoder": (
        "An encoder: every token sees every other. {shape}",
        "编码器模型：词元两两可见。{shape}",
    ),
    "lead.decoder": (
        "A decoder: every token sees those before it. {shape}",
        "解码器模型：每个词元只看得到它前面的词元。{shape}",
    ),
    "lead.shape.one": (
        "It has {layers}, vectors of {dim} numbers, {heads} and a vocabulary of {vocab} tokens.",
        "共 {layers}，向量维度 {dim}，{heads}，词表大小 {vocab}。",
    ),
    # --- examples ---
    "nav.examples": ("Examples", "示例"),
    "examples.title": ("Examples and mistakes", "示例与错误"),
    "examples.intro": (
        "Held-out examples that the model did not learn from: what it read, what it said, and "
        "what should have been said.",
        "以下示例均未用于训练：模型读到的内容、给出的答案，以及正确答案。",
    ),
    "examples.open": (
        "Held-out texts: a beginning, how the model goes on, and how the text goes on. There are "
        "many good ways to go on.",
        "以下文本均未用于训练：给出开头，模型续写，再与原文对照。合理的续写不止一种。",
    ),
    "examples.compare": (
        "Held-out questions: what the model answered before the training, what it answers now "
        "(each time the likeliest token), and the answer of the data. There are many good answers.",
        "以下问题均未用于训练：模型训练前的回答、训练后的回答（每步取概率最大的词元），"
        "以及数据中的回答。好的回答不止一种。",
    ),
    "examples.right": (
        "{right} of the {shown} shown here are right. They were picked to tell something, mistakes "
        "first: how often the model is right is what the figures say.",
        "这里的 {shown} 例中有 {right} 例正确。示例是有意挑选的，错误优先；"
        "模型的正确率请看上面的指标。",
    ),
    "examples.input": ("Input", "输入"),
    "examples.given": ("Model", "模型"),
    "examples.wanted": ("Right", "正确"),
    "examples.goes_on": ("Text", "原文"),
    "examples.before": ("Before", "训练前"),
    "examples.after": ("After", "训练后"),
    "examples.answer": ("Data", "数据"),
    "examples.compared": ("Before and after", "训练前后"),
    "examples.is_right": ("right", "正确"),
    "examples.is_wrong": ("wrong", "错误"),
    "examples.sure": ("{percent} sure", "把握 {percent}"),
    "confusion.title": ("What is mistaken for what", "什么被误认成什么"),
    "confusion.intro": (
        "Over the whole held-out set. A row is the right label, a column what the model said; off "
        "the diagonal are the mistakes. Colour is the share of the row.",
        "统计整个留出集。行是正确标签，列是模型给出的标签；对角线以外都是错误。颜色深浅表示占该行的比例。",
    ),
    "confusion.corner": ("right ↓ said →", "正确 ↓ 给出 →"),
    "confusion.rest": (
        "The {shown} most frequent of {all} labels.",
        "只列出 {all} 个标签中最常见的 {shown} 个。",
    ),
    "calibration.title": ("Is it as sure as it is right?", "把握与正确率是否相符"),
    "calibration.unit": ("share that is right, by how sure it was", "不同把握下的正确比例"),
    "calibration.intro": (
        "Answers sorted by how sure the model was. On the dashed line it is right as often as it "
        "says; below it, it is too sure of itself.",
        "按模型的把握大小分组。落在虚线上，说明把握与正确率一致；低于虚线，说明过于自信。",
    ),
    "calibration.axis": ("how sure", "把握"),
    "series.right": ("share right", "正确比例"),
    "js.sure": ("{n} sure", "把握 {n}"),
    # --- curves ---
    "curves.labels": (
        "The loss is the average surprise per label, −ln p(right label): 0 would be certainty, and "
        "{uniform} is what guessing among {labels} labels costs.",
        "损失是每个标签的平均“意外程度”，即 −ln p(正确标签)：0 表示完全确定；"
        "在 {labels} 个标签里瞎猜，损失约为 {uniform}。",
    ),
    "curves.any": (
        "What training makes smaller, on the training data and on data that is held out.",
        "训练所要减小的量，分别在训练数据和留出数据上测得。",
    ),
    "chart.log.plain": ("logarithmic", "对数坐标"),
    "chart.loss.labels": ("nats per label", "奈特/标签"),
    "chart.term": ("Loss: {name}", "损失：{name}"),
    "chart.term.words": ("Loss: words", "损失：词"),
    "chart.term.pair": ("Loss: pairs of sentences", "损失：句对"),
    "chart.term.image": ("Loss: image", "损失：图片"),
    "chart.term.text": ("Loss: text", "损失：文字"),
    "chart.term.spectral": ("Loss: spectra", "损失：频谱"),
    "chart.term.wave": ("Loss: wave", "损失：波形"),
    "chart.peak": ("Share of the chip's peak", "占芯片峰值算力的比例"),
    "chart.wait": ("Wait for data", "等待数据的时间占比"),
    "chart.share": ("of the time, 1 is all of it", "占总时间的比例，1 为全部"),
    "chart.share.peak": ("1 is the limit of matrix products", "1 为矩阵乘法的上限"),
    "chart.validation": ("in validation", "验证集"),
    "figure.accuracy": ("Accuracy", "准确率"),
    "figure.margin": ("Margin of the better answer", "更好回答的领先幅度"),
    "figure.chosen": ("Reward of better answers", "更好回答的奖励"),
    "figure.rejected": ("Reward of worse answers", "更差回答的奖励"),
    "figure.likelier": ("Better answer is likelier", "更好回答更可能的比例"),
    "figure.kl": ("Divergence from the reference", "与参考模型的散度"),
    "figure.f1": ("F1", "F1"),
    "figure.f1_macro": ("F1, mean of the labels", "F1（各标签平均）"),
    "figure.precision": ("Precision", "精确率"),
    "figure.recall": ("Recall", "召回率"),
    "figure.matthews": ("Matthews correlation", "马修斯相关系数"),
    "figure.pearson": ("Pearson correlation", "皮尔逊相关系数"),
    "figure.spearman": ("Spearman correlation", "斯皮尔曼相关系数"),
    "figure.exact_match": ("Exact match", "完全匹配率"),
    "figure.em": ("Exact match", "完全匹配率"),
    "figure.bits_per_byte": ("Bits per byte", "比特/字节"),
    "figure.perplexity": ("Perplexity", "困惑度"),
    "figure.nll": ("Loss", "损失"),
    "figure.bleu": ("BLEU", "BLEU"),
    "figure.chrf": ("chrF", "chrF"),
    "card.held": ("on held-out data, at the end", "训练结束时，留出数据上测得"),
    # --- layers ---
    "nav.layers": ("Layers", "各层"),
    "layers.title": ("What each layer does", "各层的状况"),
    "layers.intro": (
        "A row is a part of the model from input to output, a column a step. Healthy layers are "
        "of one shade and change slowly; a row that pales has stopped learning, one that darkens "
        "on its own is about to run away.",
        "每一行是模型的一个部件，自上而下从输入到输出；每一列是一步。健康的模型各层颜色相近、变化平缓；"
        "某一行变淡，说明那里几乎不再学习；某一行独自变深，说明数值将要失控。",
    ),
    "layers.rms": ("Gradient, root mean square", "梯度（均方根）"),
    "layers.update": ("Step relative to the weights", "每步更新相对权重的大小"),
    "layers.std": ("Spread of the states after each layer", "每层输出的标准差"),
    "layers.max": ("Largest state after each layer", "每层输出的最大绝对值"),
    "layers.log": ("logarithmic shades", "颜色取对数"),
    "js.layer_at": ("{name}, step {n}: {value}", "{name}，第 {n} 步：{value}"),
    # --- attention, positions, architecture, cost of one stack ---
    "attention.intro.one": (
        "Each row is one token, and its colours say how that token's attention is spread over the "
        "columns; a row adds up to 1.",
        "每一行是一个词元，颜色深浅表示它的注意力在各列上如何分配，每行之和为 1。",
    ),
    "attention.heads.one": (
        "Heads divide the work, so compare them: some watch the neighbours, some gather what "
        "belongs together, some rest on the first or the last token when there is nothing to "
        "fetch. Weights show where a head reads, not by themselves why the model answers as it "
        "does.",
        "不同的头各有分工，可以对比着看：有的关注相邻位置，有的把相关的词聚在一起，"
        "有的在没有信息要取时停在首尾词元上。权重只说明这个头在读哪里，并不能单独解释模型为何这样回答。",
    ),
    "attention.self.encoder": (
        "Rows and columns are both the text, and every token sees every other.",
        "行和列都是这段文本，词元之间两两可见。",
    ),
    "attention.self.decoder": (
        "Rows and columns are both the text; the upper right is empty because a token must not see "
        "what comes after it.",
        "行和列都是这段文本；右上角是空的，因为词元不能看到后面的内容。",
    ),
    "attention.static.one": (
        "Attention of the last layer, averaged over its heads.",
        "最后一层的注意力，对所有头取平均。",
    ),
    "kind.encoder.one": ("Self-attention", "自注意力"),
    "kind.decoder.one": ("Self-attention", "自注意力 "),
    "positions.rotary": (
        "Here queries and keys are turned by an angle that grows with the position, so that their "
        "product depends on the distance alone; nothing is added to the input.",
        "这里用旋转位置编码：查询和键随位置转过一个角度，二者的内积只取决于距离，输入上不加任何向量。",
    ),
    "positions.distances": (
        "No position is added to the embedding. How far a key is behind the query is a sinusoid, "
        "which each layer projects and compares with the query (Transformer-XL).",
        "不向嵌入加位置。键在查询之前多远用正弦表示，由每层各自投影，再与查询比较（Transformer-XL）。",
    ),
    "positions.bias": (
        "Here a learned number for each range of distances is added to the attention's scores.",
        "这里给每一段距离学一个数，加到注意力得分上。",
    ),
    "architecture.intro.one": (
        "Read from the bottom up. Beside each arrow stands the shape of what flows there: "
        "<var>B</var> texts in a batch, <var>T</var> tokens.",
        "自下而上读。箭头旁标的是流经张量的形状：<var>B</var> 为批内文本数，"
        "<var>T</var> 为词元数。",
    ),
    "diagram.tokens": ("tokens", "词元"),
    "diagram.rotary": ("rotary positions", "旋转位置编码"),
    "diagram.relative": ("relative positions", "相对位置偏置"),
    "diagram.first": ("the first token", "第一个词元"),
    "diagram.last": ("the last token", "最后一个词元"),
    "diagram.each": ("each token", "每个词元"),
    "diagram.pool": ("Pooler", "池化层"),
    "diagram.classes": ("Classifier", "分类层"),
    "diagram.classes.size": ("{dim} → {labels} labels", "{dim} → {labels} 个标签"),
    "diagram.spans": ("Begin and end", "起止位置"),
    "diagram.scores_of": ("scores", "得分"),
    "side.head": ("Output head ", "输出层"),
    "part.token types": ("token types", "词元类型"),
    "part.empty places": ("empty places", "空位"),
    "part.relative positions": ("relative positions", "相对位置编码"),
    "part.embedding projections": ("embedding projections", "词嵌入投影"),
    "part.projections": ("projections", "投影"),
    "part.shared by layers": ("shared by layers", "各层共用"),
    "part.up-projection": ("up-projection", "升维投影"),
    "part.pooler": ("Pooler", "池化层"),
    "part.transform": ("transform", "变换层"),
    "growth.intro.one": (
        "Forward operations for one token in texts of that length. Comparing every token with "
        "every other grows with the length; the rest stays as it is.",
        "处理一个词元的前向计算量。词元两两比较的开销随长度增长，其余部分不变。",
    ),
    "growth.title.one": ("What the work is spent on as texts grow", "文本变长，计算花在哪里"),
    # --- next steps ---
    "next.generate": ("Let it write", "让它续写"),
    "next.fill": ("Fill in what is hidden", "填补被遮住的词"),
    "next.classify": ("Classify a text", "给一段文本分类"),
    "next.tag": ("Tag a text", "给一段文本打标签"),
    "next.answer": ("Ask a question about a text", "就一段文本提问"),
    "next.choose": ("Let it choose", "让它做选择"),
    "next.embed": ("Turn texts into vectors", "把文本变成向量"),
    "next.similarity": ("Compare texts", "比较文本的相似度"),
    "next.load": ("Open it in Python", "在 Python 中打开"),
    # --- facts ---
    "facts.objective": ("Objective", "训练目标"),
    "facts.model": ("Model", "模型"),
    "facts.tune": ("Trained parameters", "训练的参数"),
    "facts.tune_parts": ("Where they are", "在哪些部分"),
    "facts.optimiser": ("Optimiser", "优化器"),
    "facts.schedule": ("Schedule", "学习率计划"),
    "facts.batch": ("Tokens of a step", "每步词元数"),
    "facts.speed": ("Speed", "训练速度"),
    "facts.speed.value": (
        "{speed} {unit}, {peak} of the chip's peak, {wait} waiting for data",
        "{speed} {unit}，占芯片峰值 {peak}，等待数据 {wait}",
    ),
    "facts.memory": ("Memory", "内存"),
    "facts.kept": ("Steps kept for replay", "留待重放的步"),
}
